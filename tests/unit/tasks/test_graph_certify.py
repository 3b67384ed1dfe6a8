from dataclasses import replace

import pytest

from millrace.export.onnx.graph_certificate import GraphCertificate, GraphStage
from millrace.models.registry.version_files import ModelVersion
from millrace.tasks.kinds.graph.graph_certify import LiveGraph, faults_of, label_faults

INT8 = GraphStage("onnx-int8", 0.01, 0.02, metric=0.95, metric_loss=0.0)
CERTIFICATE = GraphCertificate(
    model="m",
    candidate="onnx-int8",
    digest="digest",
    dataset="d",
    dataset_version=0,
    dataset_digest="",
    test_rows=1000,
    golden_rows=32,
    metric_name="accuracy",
    max_metric_loss=0.01,
    stages=(GraphStage("pytorch", 0.0, 0.0, 0.95, 0.0), INT8),
    passed=True,
)
SAME = replace(INT8, name="file")


def faults(
    certificate: GraphCertificate = CERTIFICATE, file: GraphStage = SAME, triton: GraphStage = INT8
) -> list[str]:
    return list(faults_of(certificate, file, replace(triton, name="triton"), scale=1.0))


def test_what_is_as_certified_has_no_fault() -> None:
    assert faults() == []


def test_rounding_is_no_fault() -> None:
    rounded = replace(INT8, golden_difference=0.01005, metric=0.947)
    assert faults(file=replace(rounded, name="file"), triton=rounded) == []


@pytest.mark.parametrize("difference", [0.0102, float("nan"), float("inf")])
def test_a_server_that_answers_otherwise_is_told(difference: float) -> None:
    (fault,) = faults(triton=replace(INT8, golden_difference=difference))
    assert fault.startswith("triton: answers to the golden batch differ by")


@pytest.mark.parametrize("metric", [0.94, 0.96, None, float("nan")])
def test_another_metric_on_the_test_split_is_told(metric: float | None) -> None:
    (fault,) = faults(file=replace(SAME, metric=metric))
    assert fault.startswith("file: accuracy")


@pytest.mark.parametrize(
    "tampered",
    [
        replace(INT8, metric=0.99),
        replace(INT8, golden_difference=0.0),
        replace(INT8, name="onnx-other"),
    ],
)
def test_a_tampered_stage_fails_the_certificate(tampered: GraphStage) -> None:
    stages = (CERTIFICATE.stages[0], tampered)
    assert faults(replace(CERTIFICATE, stages=stages))


def test_a_certificate_that_did_not_pass_is_told() -> None:
    (fault,) = faults(replace(CERTIFICATE, passed=False))
    assert "did not pass its gates" in fault


def test_labels_in_another_order_are_a_fault() -> None:
    assert list(label_faults(("a", "b"), {0: "a", 1: "b"})) == []
    (fault,) = label_faults(("a", "b"), {0: "b", 1: "a"})
    assert "output column 0 has the label 'b' instead of 'a'" in fault
    assert len(list(label_faults(("a", "b"), {}))) == 1


def test_the_stages_are_told_from_pytorch_to_the_live_server() -> None:
    certificate = CERTIFICATE.with_stage(replace(INT8, name="triton", metric_loss=0.0123))
    version = ModelVersion("m", 1, "digest", "run")
    table = LiveGraph(certificate, version, "127.0.0.1:8001", (1, 32), ()).table()
    assert table.head == ("stage", "golden difference", "accuracy", "loss")
    assert table.rows == [
        ("pytorch", "0.00e+00", "0.9500", "+0.00%"),
        ("onnx-int8  ← chosen", "1.00e-02", "0.9500", "+0.00%"),
        ("triton", "1.00e-02", "0.9500", "+1.23%"),
    ]
    assert table.notes == (("sent", "32 golden rows in requests of 1, 32, and 1,000 test rows"),)
