"""The variants of a small model that reads text, and what they are measured on."""

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper

from millrace.export.onnx.conversions import optimized
from millrace.export.onnx.conversions.embeddings import LEAST, quantize_tables
from millrace.export.onnx.graph_variants import FP32, GRAPH_VARIANTS, VARIANTS
from millrace.export.onnx.measure_graph import Evidence, gather_evidence
from millrace.export.onnx.onnx_exporter import Exporter
from millrace.models.config.export_spec import ExportSpec
from millrace.models.config.training_spec import ModelSpec
from millrace.models.families.family import build_network
from millrace.models.families.network import Served
from millrace.models.families.objective import Classification
from millrace.models.inference.features import Encoding, Feature
from millrace.models.inference.model_input import INPUT_IDS
from millrace.models.inference.onnx_session import OnnxSession
from millrace.models.inference.tokenizer import train_tokenizer
from tests.unit.export.conftest import exporting_here

LABELS = ("a", "b", "c")
OBJECTIVE = Classification(LABELS)
TOKENIZER = train_tokenizer(["one two three", "four five six"] * 9, vocab_size=290, max_tokens=24)
ENCODING = Encoding((Feature("body", "text", 24),), "t", LABELS, tokenizer=TOKENIZER)
FOR_GPUS = {name for name, variant in VARIANTS.items() if variant.package} | {
    "onnx-bf16",
    "onnx-fp8",
}
NEAR = {FP32: 1e-5, "onnx-optimized": 1e-5, "onnx-fp16": 0.01}


def rows_of(count: int) -> np.ndarray:
    words = ["one", "two", "three", "four", "five", "six"]
    random = np.random.default_rng(0)
    texts = [" ".join(random.choice(words, random.integers(0, 9))) for _ in range(count)]
    return TOKENIZER.ids(texts)


@pytest.fixture(scope="module")
def served() -> Served:
    torch.manual_seed(0)
    params = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    spec = ModelSpec(family="text_classifier", params=params)
    network = build_network(spec, Path(), ENCODING, OBJECTIVE)
    with torch.no_grad():  # surer answers than a fresh head gives
        network.net.head.weight *= 8  # type: ignore[union-attr,operator]
    return Served(network, OBJECTIVE).eval()


@pytest.fixture(scope="module")
def evidence(served: Served) -> Evidence:
    rows = rows_of(100)
    with torch.inference_mode():
        target = served(torch.from_numpy(rows)).numpy().argmax(axis=1)
    return gather_evidence(
        *(served, OBJECTIVE, ENCODING.input, rows, target), golden_rows=10, batch_rows=16
    )


@pytest.fixture(scope="module")
def exporter(
    served: Served, evidence: Evidence, tmp_path_factory: pytest.TempPathFactory
) -> Exporter:
    calibration = [ENCODING.input.trimmed(part) for part in np.array_split(rows_of(60), 4)]
    exporter = Exporter(
        served=served,
        objective=OBJECTIVE,
        read=ENCODING.input,
        calibration=lambda: calibration,
        validation=lambda: evidence,
        folder=tmp_path_factory.mktemp("forms"),
        threads=1,
        spec=ExportSpec(candidates=GRAPH_VARIANTS),
    )
    return exporting_here(exporter)


@pytest.mark.parametrize("name", sorted({FP32, *VARIANTS} - FOR_GPUS))
def test_a_form_answers_texts_of_any_length_in_batches_of_any_size(
    exporter: Exporter, served: Served, name: str
) -> None:
    session = OnnxSession(exporter.make(name))
    for rows in (rows_of(1), rows_of(3), rows_of(40), rows_of(40)[:, :1]):
        with torch.inference_mode():
            wanted = served(torch.from_numpy(rows)).numpy()
        for asked in (rows, ENCODING.input.trimmed(rows)):
            np.testing.assert_allclose(session.answer(asked), wanted, atol=NEAR.get(name, 0.2))


def test_what_is_asked_is_padded_and_unpadded_together_and_alone(evidence: Evidence) -> None:
    asked = list(evidence.golden_batches())
    shapes = [rows.shape for rows, _ in asked]
    assert shapes[0] == (10, 24)
    assert shapes[1][0] == 16  # a full batch, some rows twice
    assert shapes[1][1] < 24
    assert [rows for rows, _ in shapes[2:]] == [3, 3, 3, 1, *[1] * 10, 10]
    for rows, answers in asked:
        assert len(rows) == len(answers)
    for row in range(10):
        np.testing.assert_array_equal(asked[6 + row][1][0], evidence.golden_answers[row])
    last, _ = asked[-1]
    lengths = (last != TOKENIZER.padding).sum(axis=1)
    assert lengths.tolist() == sorted(lengths)


def test_a_form_that_reads_the_padding_is_found_out(
    exporter: Exporter, evidence: Evidence, tmp_path: Path
) -> None:
    model = onnx.load(exporter.make(FP32))
    model.graph.initializer.append(numpy_helper.from_array(np.array(-5), "nothing"))
    for node in model.graph.node:  # `input_ids != padding` becomes `input_ids != -5`
        if node.op_type == "Equal" and INPUT_IDS in node.input:
            node.input[1 - list(node.input).index(INPUT_IDS)] = "nothing"
            break
    else:
        pytest.fail("the graph compares its tokens with nothing")
    onnx.save(model, tmp_path / "blind.onnx")
    blind = exporter.measure("blind", tmp_path / "blind.onnx", evidence)
    right = exporter.measure(FP32, exporter.make(FP32), evidence)
    assert right.stage is not None
    assert blind.stage is not None
    assert right.stage.golden_difference < 1e-5
    assert blind.stage.golden_difference > 1e-3


def test_a_table_of_embeddings_has_a_scale_for_each_token(
    exporter: Exporter, tmp_path: Path
) -> None:
    plain = exporter.make(FP32)
    path = tmp_path / "small.onnx"
    path.write_bytes(plain.read_bytes())
    quantize_tables(path)
    tables = {each.name: numpy_helper.to_array(each) for each in onnx.load(path).graph.initializer}
    (name,) = [each for each in tables if each.endswith(".int8")]
    word = name.removesuffix(".int8")
    assert word not in tables
    before = {c.name: numpy_helper.to_array(c) for c in onnx.load(plain).graph.initializer}[word]
    assert len(before) >= LEAST
    assert tables[f"{word}.scale"].shape == (len(before), 1)
    error = np.abs(tables[name] * tables[f"{word}.scale"] - before)
    assert (error <= np.abs(before).max(axis=1, keepdims=True) / 127).all()
    rows = rows_of(5)
    near = OnnxSession(path).answer(rows) - OnnxSession(plain).answer(rows)
    assert 0 < np.abs(near).max() < 0.05


def test_the_tables_are_in_int8_in_every_int8_form(exporter: Exporter) -> None:
    for name in ("onnx-int8-dynamic", "onnx-int8-static", "onnx-int8-weights", "onnx-int8-smooth"):
        graph = onnx.load(exporter.make(name)).graph
        assert [each for each in graph.initializer if each.name.endswith(".int8")], name


def test_attention_layer_norm_and_gelu_are_one_node_each(exporter: Exporter) -> None:
    graph = onnx.load(exporter.make("onnx-optimized")).graph
    kinds = Counter(node.op_type for node in graph.node)
    assert (kinds["Attention"], kinds["SkipLayerNormalization"], kinds["BiasGelu"]) == (2, 4, 2)
    assert exporter.make("onnx-optimized") != exporter.make(FP32)


def test_a_mask_that_is_another_one_is_left_alone(exporter: Exporter) -> None:
    model = onnx.load(exporter.make(FP32))
    assert optimized.turn_attention(model) is not None
    softmax = next(node for node in model.graph.node if node.op_type == "Softmax")
    add = next(node for node in model.graph.node if softmax.input[0] in node.output)
    mask = add.input[1]
    for node in model.graph.node:  # what was masked is seen a little
        node.input[:] = [f"{mask}.half" if each == mask else each for each in node.input]
    model.graph.initializer.append(numpy_helper.from_array(np.float32(1e-38), "tiny"))
    place = 1 + next(n for n, node in enumerate(model.graph.node) if mask in node.output)
    half = helper.make_node("Mul", [mask, "tiny"], [f"{mask}.half"])
    model.graph.node.insert(place, half)
    assert optimized.turn_attention(model) is None
