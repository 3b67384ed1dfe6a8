"""The export of a graph: its certificate, its evidence, and what it is shown beside."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from millrace.export.certificate import Header
from millrace.export.onnx.answer_split import answers_file
from millrace.export.onnx.graph_certificate import Baseline, GraphCandidate, GraphStage
from millrace.export.onnx.measure_graph import Evidence
from millrace.export.select import Gates
from millrace.models.common.errors import WorkError
from millrace.models.config.pipeline import Pipeline
from millrace.models.inference.features import Encoding, Feature
from millrace.models.registry.version_files import ModelVersion, Package
from millrace.tasks.kinds.graph.graph_export import GraphExport
from millrace.tasks.kinds.graph.graph_files import GraphFiles, graph_files

ENCODING = Encoding((Feature("x", "number"),), "t", ("no", "yes"))
PIPELINE = Pipeline.model_validate(
    {
        "name": "m",
        "dataset": {"source": "r.csv", "target": "t"},
        "export": {"max_metric_loss": 0.02},
        "serving": {"latency_slo_ms": 5.0},
    }
)
ANSWERS = np.float32([[0.9, 0.1], [0.2, 0.8], [0.8, 0.2]])
ROWS = np.float32([[0.0], [1.0], [2.0]])
EVIDENCE = Evidence(
    *(ENCODING.input, ROWS[:2], ROWS, np.array([0, 1, 0]), ANSWERS[:2], ANSWERS, 1.0, 2)
)
BASELINE = Baseline("'no'", "accuracy", 2 / 3, 0.5, True)
HEADER = Header(
    model="m",
    candidate="good",
    digest="d",
    dataset="rows",
    dataset_version=3,
    dataset_digest="e",
    passed=True,
)


def candidate(name: str, metric: float = 1.0, **values: Any) -> GraphCandidate:
    stage = GraphStage(name, 1e-7, 1e-7, metric, 0.0)
    return GraphCandidate(name, Path(f"{name}.onnx"), "d", 2048, stage=stage, **values)


GOOD, USELESS = candidate("good"), candidate("useless", metric=0.5)
UNMADE = GraphCandidate("unmade", reason="its conversion crashed")


@dataclass
class FakeExporter:
    """An exporter whose candidates are known.

    Attributes:
        folder: where the files go.
        made: the candidates.
        measures: called for a registered version that is measured too.
    """

    folder: Path
    made: tuple[GraphCandidate, ...] = ()
    measures: Any = None
    gates: Gates = Gates(0.02)
    objective: Any = field(default_factory=lambda: SimpleNamespace(metric="accuracy"))

    def candidates(self, evidence: Evidence, latency_slo_ms: float) -> Iterator[GraphCandidate]:
        assert (evidence, latency_slo_ms) == (EVIDENCE, 5.0)
        yield from self.made

    def measure(self, name: str, file: Path, evidence: Evidence) -> GraphCandidate:
        assert file.read_bytes() == b"registered"
        found: GraphCandidate = self.measures(name)
        return found


def export(exporter: FakeExporter, reference: GraphFiles | None = None) -> GraphExport:
    golden = pa.table({"x": [0.0, 1.0]})
    fake: Any = exporter
    return GraphExport(PIPELINE, fake, EVIDENCE, BASELINE, ENCODING, golden, reference)


@pytest.fixture
def registered(tmp_path: Path) -> GraphFiles:
    """A version that the model is compared with."""
    (tmp_path / "model.onnx").write_bytes(b"registered")
    version = ModelVersion("m", 3, "d", "run", tags={"millrace.candidate": "onnx-int8"})
    return graph_files(Package(version, {"model.onnx": tmp_path / "model.onnx"}, tmp_path))


def test_a_candidate_that_beats_no_constant_is_refused(tmp_path: Path) -> None:
    made = FakeExporter(tmp_path, (GOOD, USELESS, UNMADE))
    good, useless, unmade = export(made).candidates()
    assert (good.passed, unmade) == (True, UNMADE)
    assert "its accuracy of 0.5000 is no better than 0.6667" in str(useless.reason)


@pytest.mark.parametrize("telling", [True, False])
def test_a_test_split_of_one_answer_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, telling: bool
) -> None:
    made = export(FakeExporter(tmp_path, (GOOD,)))
    with caplog.at_level(logging.WARNING, "millrace"):
        list(replace(made, baseline=replace(BASELINE, is_telling=telling)).candidates())
    assert [each.split(",")[0] for each in caplog.messages] == (
        [] if telling else ["the test split has only one distinct target value"]
    )


def test_its_certificate_has_pytorch_and_every_candidate_that_was_measured(tmp_path: Path) -> None:
    made = (GOOD, USELESS, UNMADE)
    found = export(FakeExporter(tmp_path, made)).certificate(HEADER, made, GOOD)
    assert [(stage.name, stage.size_bytes) for stage in found.stages] == [
        *(("pytorch", None), ("good", 2048), ("useless", 2048)),
    ]
    assert (found.test_rows, found.golden_rows, found.metric_name) == (3, 2, "accuracy")
    assert (found.max_metric_loss, found.batch_sizes) == (0.02, (1, 2))
    assert found.constant == pytest.approx(2 / 3)
    assert found.reference is None


def test_the_version_that_it_is_shown_beside_is_measured_as_it_is(
    tmp_path: Path, registered: GraphFiles
) -> None:
    made = FakeExporter(tmp_path, (GOOD,), measures=candidate)
    found = export(made, registered).certificate(HEADER, (GOOD,), GOOD).reference
    assert found is not None
    assert (found.name, found.size_bytes) == ("m version 3, onnx-int8", 2048)
    assert not (tmp_path / "reference.onnx").exists()


def test_one_that_cannot_be_measured_is_left_out(
    tmp_path: Path, registered: GraphFiles, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(name: str) -> GraphCandidate:
        raise WorkError("its measurement crashed")

    made = FakeExporter(tmp_path, (GOOD,), measures=broken)
    with caplog.at_level(logging.WARNING, "millrace"):
        certificate = export(made, registered).certificate(HEADER, (GOOD,), GOOD)
    assert certificate.reference is None
    assert caplog.messages == [
        "m version 3, the version to compare with, could not be measured: its measurement crashed"
    ]
    assert not (tmp_path / "reference.onnx").exists()


def test_its_evidence_is_the_encoding_and_the_golden_batch(tmp_path: Path) -> None:
    made = export(FakeExporter(tmp_path, (GOOD,)))
    certificate = made.certificate(HEADER, (GOOD,), GOOD)
    found = made.evidence(GOOD, certificate)
    assert found["encoding.json"] == ENCODING.to_json()
    with np.load(found["golden.npz"]) as golden:
        np.testing.assert_array_equal(golden["features"], ROWS[:2])
        np.testing.assert_array_equal(golden["answers"], ANSWERS[:2])


def test_its_answers_are_those_that_were_measured(tmp_path: Path) -> None:
    chosen = replace(GOOD, path=tmp_path / "good.onnx")
    np.save(answers_file(tmp_path / "good.onnx"), ANSWERS)
    found = export(FakeExporter(tmp_path, (chosen,))).answers(chosen)
    np.testing.assert_array_equal(found, ANSWERS)


def test_its_file_is_the_chosen_one(tmp_path: Path) -> None:
    made = export(FakeExporter(tmp_path, (GOOD,)))
    assert made.model_files(GOOD) == {"model.onnx": Path("good.onnx")}
    with pytest.raises(WorkError, match="unmade was chosen, but was not made"):
        made.model_files(UNMADE)
