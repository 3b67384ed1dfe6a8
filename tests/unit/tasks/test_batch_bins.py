"""What a batch job's rows are held against, from real snapshots and real tokenizers."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pyarrow as pa
import pytest
from onnx import TensorProto, helper, numpy_helper

from millrace.models.common.installation import Installation
from millrace.models.config.model_kind import kind_named
from millrace.models.config.pipeline import Pipeline
from millrace.models.data import ingest
from millrace.models.data.column_statistics import statistics_of
from millrace.models.data.schema import Column, TableSchema
from millrace.models.data.snapshots import Snapshot
from millrace.models.inference.features import Encoding, Feature
from millrace.models.inference.tokenizer import train_tokenizer
from millrace.serving.batch.monitoring.drift import drift_of
from millrace.serving.batch.prompts.openvino_job import PromptJob
from millrace.serving.batch.prompts.prompt_rows import Sampling
from millrace.serving.batch.row_job import RowJob
from millrace.tasks.batch.drift_reference import PREDICTION, bins_of
from millrace.tasks.kinds.steps import steps_of
from millrace.tasks.score import _with_bins
from tests.stand_ins.vllm_variant import write_variant

TEXT = "the old mill by the river turned its wheel all day and all night long. " * 4
WORDS = TEXT.split()
SCHEMA = TableSchema(
    (
        Column("age", "float"),
        Column("note", "text"),
        Column("kind", "category", categories=("a", "b")),
        Column("t", "category", categories=("no", "yes")),
    ),
    (),
    "t",
    ("age", "note", "kind"),
)
INSTRUCTIONS: dict[str, Any] = {
    "target": "answer",
    "features": ["ask"],
    "key": ["id"],
    "columns": {"answer": {"type": "text"}},
}


@pytest.fixture
def installation(tmp_path: Path) -> Installation:
    return Installation(tmp_path / "home", "", str(tmp_path / "home" / "tables")).prepared()


def ingested(
    folder: Path,
    installation: Installation,
    rows: Sequence[dict[str, Any]],
    family: str,
    **dataset: Any,
) -> Snapshot:
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    values = {
        "name": "t",
        "dataset": {"source": "rows.jsonl", **dataset},
        "model": {"family": family},
    }
    return ingest.ingest(Pipeline.model_validate(values).with_folder(folder), installation)


def watched(job: RowJob | PromptJob, snapshot: Snapshot | None) -> Any:
    """Return the job with what its rows and answers are compared with."""
    kind = kind_named("graph" if isinstance(job, RowJob) else "language")
    return _with_bins(steps_of(kind), job, snapshot)


def test_columns_that_can_be_compared_have_bins_and_the_target_those_of_predictions() -> None:
    columns = {"age": [1.0, 2.0], "note": ["x", "y"], "kind": ["a", "b"], "t": ["no", "yes"]}
    known = statistics_of(pa.record_batch(columns), SCHEMA)
    features, target = bins_of(Snapshot("m", "uri", 2, "digest", 2, SCHEMA, known, {}))
    assert [bins.column for bins in features] == ["age", "kind"]
    assert [bins.column for bins in target] == [PREDICTION]


def half_of(column: int, path: Path) -> Path:
    """Write a model that predicts half of a column: its answers spread less than the target."""
    rows = helper.make_tensor_value_info("features", TensorProto.FLOAT, ["rows", 2])
    answer = helper.make_tensor_value_info("answers", TensorProto.FLOAT, ["rows", 1])
    weights = numpy_helper.from_array(np.eye(2, dtype=np.float32)[:, [column]] / 2, "w")
    nodes = [helper.make_node("MatMul", ["features", "w"], ["answers"])]
    graph = helper.make_graph(nodes, "half", [rows], [answer], [weights])
    opset = helper.make_opsetid("", 20)
    onnx.save_model(helper.make_model(graph, opset_imports=[opset], ir_version=10), path)
    return path


def test_predictions_are_compared_with_the_models_own_and_not_with_the_target(
    tmp_path: Path, installation: Installation
) -> None:
    chance = np.random.default_rng(0)
    rows = [
        {"id": n, "a": float(a), "b": 1.0, "t": float(a)}
        for n, a in enumerate(chance.normal(size=400))
    ]
    snapshot = ingested(
        tmp_path, installation, rows, "mlp", target="t", key=["id"], features=["a", "b"]
    )
    encoding = Encoding((Feature("a", "number", 1), Feature("b", "number", 1)), "t", ())
    job = RowJob("m", 1, "d", half_of(0, tmp_path / "model.onnx"), encoding)
    (own,) = watched(job, snapshot).output_bins
    (target,) = bins_of(snapshot)[1]
    predicted = pa.array([row["a"] / 2 for row in rows])
    assert own.column == target.column == PREDICTION
    assert drift_of(own, own.count(predicted)).psi < 0.01
    assert drift_of(target, target.count(predicted)).psi > 0.25
    for file in Path(snapshot.uri).rglob("*.parquet"):
        file.unlink()
    assert watched(job, snapshot).output_bins == (target,)


def test_of_texts_the_tokens_that_the_model_reads_are_compared(
    tmp_path: Path, installation: Installation
) -> None:
    texts = [" ".join(WORDS[: 1 + n % 12]) for n in range(300)]
    rows = [{"id": n, "body": text, "t": "ab"[n % 2]} for n, text in enumerate(texts)]
    spec = {"target": "t", "key": ["id"], "columns": {"body": {"type": "text"}}}
    snapshot = ingested(tmp_path, installation, rows, "text_classifier", **spec)
    tokenizer = train_tokenizer([TEXT], vocab_size=400, max_tokens=10)
    encoding = Encoding((Feature("body", "text", 10),), "t", ("a", "b"), tokenizer=tokenizer)
    job = watched(RowJob("m", 1, "d", Path(), encoding), snapshot)
    (bins,) = job.bins
    assert (bins.column, bins.rows) == ("tokens", 300)
    assert [bins.column for bins in job.output_bins] == ["prediction"]
    seen = pa.table({"body": [*texts, TEXT, None]})
    lengths = job.compared(seen, job.encoded(seen))["tokens"].to_pylist()
    assert lengths[:3] == [tokenizer_length(tokenizer.json, text) for text in texts[:3]]
    assert lengths[-2:] == [10, None]
    assert bins.count(pa.array(lengths[:-2])).tolist() == list(bins.counts)
    for file in Path(snapshot.uri).rglob("*.parquet"):
        file.unlink()
    gone = watched(RowJob("m", 1, "d", Path(), encoding), snapshot)
    assert gone.bins == ()
    assert [bins.column for bins in gone.output_bins] == ["prediction"]


def tokenizer_length(contents: str, text: str) -> int:
    from tokenizers import Tokenizer

    opened = Tokenizer.from_str(contents)
    opened.no_padding()
    return len(opened.encode(text).ids)


@pytest.fixture(scope="module")
def variant(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lm") / "form"
    write_variant(folder, TEXT, 64)
    return folder


def test_of_instructions_prompts_and_answers_are_compared_in_tokens(
    tmp_path: Path, installation: Installation, variant: Path
) -> None:
    from tokenizers import Tokenizer

    rows = [
        {"ask": " ".join(WORDS[: 1 + n % 7]), "answer": " ".join(WORDS[: 1 + n % 20]), "id": n}
        for n in range(200)
    ]
    snapshot = ingested(tmp_path, installation, rows, "causal_lm", **INSTRUCTIONS)
    job = watched(PromptJob("m", 1, "d", variant, sampling=Sampling(max_tokens=8)), snapshot)
    prompts, answers = job.output_bins
    assert [prompts.column, answers.column] == ["prompt_tokens", "completion_tokens"]
    assert prompts.rows == answers.rows == 200
    opened = Tokenizer.from_file(str(variant / "tokenizer.json"))
    asked = [len(opened.encode(row["ask"]).ids) for row in rows]
    assert prompts.count(pa.array(asked)).tolist() == list(prompts.counts)
    told = [min(8, 1 + len(opened.encode(row["answer"]).ids)) for row in rows]
    assert answers.count(pa.array(told)).tolist() == list(answers.counts)


def test_of_a_corpus_nothing_is_compared(
    tmp_path: Path, installation: Installation, variant: Path
) -> None:
    rows = [{"text": TEXT[n:], "id": n} for n in range(20)]
    spec = {"target": "text", "features": [], "key": ["id"]}
    snapshot = ingested(tmp_path, installation, rows, "causal_lm", **spec)
    job = watched(PromptJob("m", 1, "d", variant), snapshot)
    assert (job.bins, job.output_bins) == ((), ())


def test_without_its_snapshot_a_job_runs_and_nothing_is_compared(
    tmp_path: Path, installation: Installation, variant: Path
) -> None:
    job = PromptJob("m", 1, "d", variant)
    assert watched(job, None) == job
    rows = [{"ask": TEXT[n:], "answer": "yes", "id": n} for n in range(20)]
    snapshot = ingested(tmp_path, installation, rows, "causal_lm", **INSTRUCTIONS)
    for file in Path(snapshot.uri).rglob("*.parquet"):
        file.unlink()
    assert watched(job, snapshot) == job
