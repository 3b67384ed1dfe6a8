from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from millrace.export.onnx.graph_certificate import (
    GraphCandidate,
    GraphCertificate,
    GraphSpeed,
    GraphStage,
)
from millrace.models.config.pipeline import Pipeline
from millrace.models.inference.features import Encoding, Feature
from millrace.tasks.kinds.graph.graph_report import (
    candidate_row,
    candidates_table,
    certificate_table,
    draw_export,
    report_graph,
)
from millrace.tasks.kinds.graph.graph_train import GraphTraining
from millrace.tasks.kinds.steps import Exported, KindReport, Prepared, Trained

CERTIFICATE = GraphCertificate(
    model="m",
    candidate="fast",
    digest="d",
    dataset="rows",
    dataset_version=0,
    dataset_digest="e",
    test_rows=10,
    golden_rows=2,
    metric_name="accuracy",
    max_metric_loss=0.01,
    passed=True,
)
STAGE = GraphStage("fast", 0.0, 0.0, 0.98765, 0.0123, 0.98, 0.995, "no", 0.9)
MEASURED = GraphCandidate(
    "fast", size_bytes=2**21, speed=GraphSpeed(0.1234, 1.5, 81234.5, 2**27), stage=STAGE
)


@pytest.mark.parametrize(
    ("candidate", "verdict"),
    [
        (MEASURED, "chosen"),
        (replace(MEASURED, name="other"), "passed"),
        (replace(MEASURED, reason="too slow"), "too slow"),
        (replace(MEASURED, name="other", is_served=False), "passed; an engine, not served"),
    ],
)
def test_a_candidate_is_told_with_its_verdict(candidate: GraphCandidate, verdict: str) -> None:
    assert candidate_row(candidate, CERTIFICATE) == (
        *(candidate.name, "2,048 KiB", "0.123 ms", "1.500 ms", "81,234", "128 MiB"),
        *("0.9877", "0.9800 to 0.9950", "no: 0.9000", "1.23%", verdict),
    )


def test_forms_of_the_front_have_a_star_and_the_machine_is_told() -> None:
    slow = replace(MEASURED, name="slow", speed=GraphSpeed(9.0, 9.0, 1.0, 1))
    told = candidates_table([MEASURED, slow], replace(CERTIFICATE, machine="a laptop"))
    assert "| fast ★ |" in told
    assert "| slow |" in told
    assert "Measured on a laptop." in told


def test_what_engines_are_tied_to_is_told_once() -> None:
    tied = [
        replace(MEASURED, name=name, stage=replace(STAGE, name=name, ties="a GPU, TensorRT 11"))
        for name in ("one", "other")
    ]
    assert candidates_table([MEASURED, *tied], CERTIFICATE).count("With TensorRT: a GPU") == 1
    assert "With TensorRT" not in candidates_table([MEASURED], CERTIFICATE)


def test_a_candidate_that_was_not_made_is_told_with_the_reason() -> None:
    row = candidate_row(GraphCandidate("int8", reason="nothing to quantize"), CERTIFICATE)
    assert row == ("int8", *[""] * 9, "nothing to quantize")


def test_a_compressed_model_is_shown_beside_another_with_their_sizes() -> None:
    small = replace(STAGE, size_bytes=2048)
    beside = replace(STAGE, name="m version 3, onnx-fp32", metric=0.99, size_bytes=8192)
    told = certificate_table(replace(CERTIFICATE, stages=(small,), reference=beside))
    *_, compressed, reference = told.splitlines()
    assert compressed.endswith("| 0.9877 | +1.23% | 2 KiB |")
    assert reference == "| compared with m version 3, onnx-fp32 |  | 0.9900 | +1.23% | 8 KiB |"


def run_of(
    *candidates: GraphCandidate,
    labels: tuple[str, ...] = ("no", "yes"),
    objective: str = "latency",
    **certificate: Any,
) -> tuple[Pipeline, Trained[GraphTraining], Exported]:
    """Return a run; its first candidate was chosen."""
    pytorch = GraphStage("pytorch", 0.0, 0.0, 0.99, 0.0)
    stages = (pytorch, *(each.stage for each in candidates if each.stage))
    made = replace(CERTIFICATE, stages=stages, **certificate)
    answers = np.float32([[0.2, 0.8], [0.9, 0.1]])[:, : max(len(labels), 1)]
    export = SimpleNamespace(
        answers={candidates[0]: answers}.__getitem__,
        measured_on=SimpleNamespace(target=np.array([1, 0])),
    )
    encoding = Encoding((Feature("x", "number"),), "t", labels)
    job: Any = SimpleNamespace(unit="epoch")
    prepared = Prepared(job, GraphTraining(encoding), 1, "", "weights.pt", "weights")
    losses = {f"{split}_{name}": 0.5 for split in ("train", "validation") for name in METRICS}
    trained = Trained(prepared, Path(), ({"epoch": 1, **losses},), ())
    pipeline = Pipeline.model_validate(
        {
            "name": "m",
            "dataset": {"source": "r.csv", "target": "t"},
            "export": {"objective": objective},
        }
    )
    export.encoding, export.pipeline = encoding, pipeline
    return pipeline, trained, Exported(export, candidates, candidates[0], made, {}, {})


def reported(*candidates: GraphCandidate, **options: Any) -> KindReport:
    """Return the report of a run; its first candidate was chosen."""
    snapshot: Any = None
    pipeline, trained, exported = run_of(*candidates, **options)
    return report_graph(pipeline, snapshot, trained, exported)


METRICS = ("loss", "accuracy", "r2")


def test_its_rows_are_what_there_is_to_beat_and_every_candidate() -> None:
    unmade = GraphCandidate("int8", reason="nothing to quantize")
    refused = replace(MEASURED, name="slow", reason="it is too slow")
    beside = replace(STAGE, name="m version 3, onnx-fp32", metric=0.99, size_bytes=8192)
    rows = reported(MEASURED, refused, unmade, constant=0.1, reference=beside).rows
    figures = "2,048 KiB, 0.123 ms, 81,234 rows/s, accuracy 0.9877"
    assert rows == (
        ("test accuracy", "0.9900"),
        ("constant answer", "accuracy 0.1000"),
        ("fast", f"{figures}  ← chosen"),
        ("slow", f"{figures}, it is too slow"),
        ("int8", "nothing to quantize"),
        ("compared with m version 3, onnx-fp32", "8 KiB, accuracy 0.9900"),
    )


def test_where_none_passed_the_chosen_one_is_the_nearest() -> None:
    refused = replace(MEASURED, reason="it is too slow")
    rows = dict(reported(refused, passed=False).rows)
    assert rows["fast"].endswith(", it is too slow  ← closest to the limits")
    assert "constant answer" not in rows


def test_its_tags_and_metrics_are_those_that_were_measured() -> None:
    found = reported(MEASURED, GraphCandidate("int8", reason="nothing to quantize"))
    assert found.tags == {
        "millrace.accuracy": "0.9877",
        "millrace.metric_loss": "1.2300%",
        "millrace.golden_difference": "0.00e+00",
    }
    assert found.metrics == {
        "variant.fast.accuracy": 0.98765,
        "variant.fast.difference": 0.0,
        "variant.fast.size_bytes": 2**21,
        "variant.fast.p50_ms": 0.1234,
        "variant.fast.p99_ms": 1.5,
        "variant.fast.rows_per_second": 81234.5,
        "variant.fast.peak_memory_bytes": 2**27,
        "variant.fast.other_load": 0.0,
        "test.accuracy": 0.98765,
    }


@pytest.mark.parametrize(
    ("labels", "picture"), [(("no", "yes"), "confusion_matrix"), ((), "predicted_against_true")]
)
@pytest.mark.parametrize("objective", ["latency", "throughput"])
def test_a_run_keeps_texts_and_pictures(
    labels: tuple[str, ...], picture: str, objective: str
) -> None:
    metric = "accuracy" if labels else "r2"
    options: Any = {"labels": labels, "objective": objective, "metric_name": metric}
    *_, run = run_of(MEASURED, **options)
    figures = draw_export(run.export, run.candidates, run.chosen)
    assert set(figures) == {f"plots/{name}.png" for name in (picture, "candidates")}
    found = reported(MEASURED, **options)
    assert set(found.texts) == {"encoding.json", "export/candidates.md"}
    assert [title for title, _ in found.sections] == ["Candidates", "Certificate"]
    sentence, _, certificate = found.description.partition("\n\n")
    assert sentence.endswith(" 0.9877 on 10 test rows: fast, loss +1.23%.")
    assert certificate == found.sections[1][1]


def test_an_engine_is_kept_with_the_run_and_what_can_be_made_again_is_not() -> None:
    engine = replace(MEASURED, name="tensorrt-fp16", path=Path("e.plan"), is_served=False)
    unmade = GraphCandidate("tensorrt-fp8", reason="no GPU", is_served=False)
    served = replace(MEASURED, path=Path("fast.onnx"))
    assert reported(served, engine, unmade).files == (Path("e.plan"),)
