import json
from dataclasses import replace

import numpy as np
import pytest

from millrace.export.onnx.graph_certificate import (
    Certificate,
    Stage,
    largest_difference,
    relative_loss,
)

CERTIFICATE = Certificate(
    model="m",
    candidate="onnx-fp32",
    digest="d",
    dataset="rows",
    dataset_version=4,
    dataset_digest="e",
    test_rows=100,
    golden_rows=32,
    metric_name="accuracy",
    max_metric_loss=0.01,
    stages=(Stage("pytorch", 0.0, 0.0, 0.9, 0.0), Stage("onnx-fp32", 1e-7, 2e-7, 0.9, 0.0)),
    passed=True,
)


@pytest.mark.parametrize(
    ("answers", "reference", "difference"),
    [
        ([[1.0, 2.0]], [[1.0, 2.0]], 0.0),
        ([[1.0, 2.0]], [[1.5, 1.75]], 0.5),
        ([[1.0, -2.0]], [[1.0, 2.0]], 4.0),
        ([[float("nan"), 2.0]], [[1.0, 2.0]], float("inf")),
        ([[float("inf"), 2.0]], [[float("inf"), 2.0]], float("inf")),
        ([[1.0]], [[1.0], [2.0]], float("inf")),
    ],
)
def test_the_largest_difference(
    answers: list[list[float]], reference: list[list[float]], difference: float
) -> None:
    assert largest_difference(np.float32(answers), np.float32(reference)) == difference


def test_no_answers_do_not_differ() -> None:
    assert largest_difference(np.zeros((0, 2)), np.zeros((0, 2))) == 0.0


@pytest.mark.parametrize(
    ("metric", "reference", "loss"),
    [
        (0.9, 0.9, 0.0),
        (0.45, 0.9, 0.5),
        (0.99, 0.9, -0.1),
        (-0.6, -0.5, 0.2),
        (-0.4, -0.5, -0.2),
        (0.5, 0.0, 0.0),
        (0.0, 0.0, 0.0),
        (-0.1, 0.0, float("inf")),
        (float("nan"), 0.0, float("inf")),
    ],
)
def test_a_loss_is_relative_to_the_reference(metric: float, reference: float, loss: float) -> None:
    assert relative_loss(metric, reference) == pytest.approx(loss)


def test_a_stage_is_found_by_its_name() -> None:
    assert CERTIFICATE.stage("onnx-fp32") == CERTIFICATE.stages[1]


def test_a_stage_that_was_not_run_is_none() -> None:
    assert CERTIFICATE.stage("triton") is None


def test_a_stage_is_added_at_the_end() -> None:
    triton = Stage("triton", 3e-7)
    assert CERTIFICATE.with_stage(triton).stages == (*CERTIFICATE.stages, triton)


def test_a_stage_that_was_there_is_replaced() -> None:
    later = CERTIFICATE.with_stage(Stage("triton", 1.0)).with_stage(Stage("triton", 2.0))
    assert [stage.golden_difference for stage in later.stages] == [0.0, 1e-7, 2.0]


def test_a_certificate_survives_json() -> None:
    certificate = CERTIFICATE.with_stage(Stage("triton", float("inf")))
    assert Certificate.from_json(certificate.to_json()) == certificate


def test_the_version_that_a_model_is_shown_beside_is_kept() -> None:
    beside = Stage("m version 3, onnx-fp32", 0.4, 0.5, 0.92, -0.02, size_bytes=4096)
    kept = Certificate.from_json(replace(CERTIFICATE, reference=beside).to_json())
    assert kept.reference == beside
    assert [stage.name for stage in kept.stages] == ["pytorch", "onnx-fp32"]


def test_a_certificate_of_before_there_were_references_and_sizes_can_be_read() -> None:
    values = json.loads(CERTIFICATE.to_json())
    del values["reference"]
    for stage in values["stages"]:
        del stage["size_bytes"]
    assert Certificate.from_json(json.dumps(values)) == CERTIFICATE
