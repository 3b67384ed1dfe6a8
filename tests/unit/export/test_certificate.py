import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from millrace.export.certificate import Certificate, CertifiedVariant, certify_candidates
from millrace.export.language.engine_speed import LanguageSpeed
from millrace.export.language.language_certificate import (
    LanguageCandidate,
    LanguageCertificate,
    LanguageStage,
    LiveStage,
)
from millrace.export.onnx.graph_certificate import (
    GraphCandidate,
    GraphCertificate,
    GraphSpeed,
    GraphStage,
    largest_difference,
    relative_loss,
)

CERTIFICATE = GraphCertificate(
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
    stages=(
        GraphStage("pytorch", 0.0, 0.0, 0.9, 0.0),
        GraphStage("onnx-fp32", 1e-7, 2e-7, 0.9, 0.0),
    ),
    passed=True,
)
QUICK = LanguageCandidate(
    *("quick", Path("quick"), "quick", 2**20),
    LanguageSpeed(0.05, 0.05, {1: 1.0, 8: 1.0, 32: 9.0}, 8, 8),
    LanguageStage("quick", 12.0, 0.2, prompts=4, greedy_equal=3, greedy_ties=1, size_bytes=2**20),
)
LANGUAGE = LanguageCertificate(
    model="code",
    candidate="quick",
    digest="quick",
    dataset="library",
    dataset_version=3,
    dataset_digest="abc",
    max_perplexity_increase=0.01,
    passed=True,
    machine="a machine",
    stages=(LanguageStage("transformers", 10.0),),
    forms=certify_candidates((QUICK, LanguageCandidate("unmade", reason="no"))),
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
    assert LANGUAGE.stage("triton") is None
    assert LANGUAGE.stage("unmade") is None


def test_a_stage_of_a_candidate_is_found_where_the_stages_do_not_have_it() -> None:
    assert LANGUAGE.stage("transformers") == LANGUAGE.stages[0]
    assert LANGUAGE.stage("quick") == QUICK.stage


@pytest.mark.parametrize("candidate", ["onnx-fp32", "onnx-int8", "unmade"])
def test_the_chosen_stage_is_that_of_the_candidate(candidate: str) -> None:
    certificate = replace(CERTIFICATE, candidate=candidate)
    assert certificate.chosen == certificate.stage(candidate)
    assert (certificate.chosen is None) is (candidate != "onnx-fp32")


def test_a_stage_is_added_at_the_end() -> None:
    triton = GraphStage("triton", 3e-7)
    assert CERTIFICATE.with_stage(triton).stages == (*CERTIFICATE.stages, triton)


def test_a_stage_that_was_there_is_replaced() -> None:
    later = CERTIFICATE.with_stage(GraphStage("triton", 1.0)).with_stage(GraphStage("triton", 2.0))
    assert [stage.golden_difference for stage in later.stages] == [0.0, 1e-7, 2.0]


def test_a_certificate_survives_json() -> None:
    certificate = CERTIFICATE.with_stage(GraphStage("triton", float("inf")))
    assert GraphCertificate.from_json(certificate.to_json()) == certificate


def test_every_candidate_of_a_graph_is_kept_with_its_speed_and_why_it_was_refused() -> None:
    speed, stage = GraphSpeed(0.1, 0.2, 1e4, 2**20), CERTIFICATE.stages[1]
    made = (
        GraphCandidate("onnx-fp32", Path("here"), "d", 9, speed, stage, notes=("found",)),
        GraphCandidate("onnx-int8", reason="it cannot be made"),
    )
    kept = GraphCertificate.from_json(
        replace(CERTIFICATE, forms=certify_candidates(made)).to_json()
    )
    assert kept.forms == (
        CertifiedVariant("onnx-fp32", "d", stage, speed),
        CertifiedVariant("onnx-int8", reason="it cannot be made"),
    )
    assert "here" not in kept.to_json()


def test_a_certificate_of_a_language_model_is_read_as_it_was_written() -> None:
    wanted = LANGUAGE.with_live(LiveStage(0.1, prompts=4, certified_alone=4, perplexity=10.0))
    found = LanguageCertificate.from_json(wanted.to_json())
    assert found == wanted
    assert [stage.name for stage in found.stages] == ["transformers"]
    assert [variant.reason for variant in found.forms if variant.speed is None] == ["no"]
    assert found.forms[0].speed == QUICK.speed


def test_its_candidates_are_those_that_were_measured_without_their_files() -> None:
    assert LANGUAGE.candidates == (
        replace(QUICK, path=None),
        LanguageCandidate("unmade", reason="no"),
    )


@pytest.mark.parametrize(
    ("kind", "text", "says"),
    [
        (GraphCertificate, "[]", "^Input should be a dictionary"),
        (GraphCertificate, "no JSON", "Expecting value"),
        (GraphCertificate, LANGUAGE.to_json(), "stages.0.golden_difference: Field required"),
        (LanguageCertificate, CERTIFICATE.to_json(), "stages.0.perplexity: Field required"),
        (LanguageCertificate, LANGUAGE.to_json().replace("12.0", '"many"'), "forms.0.stage"),
    ],
)
def test_what_is_no_certificate_of_the_kind_is_refused(
    kind: type[Certificate], text: str, says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        kind.from_json(text)


def test_the_version_that_a_model_is_shown_beside_is_kept() -> None:
    beside = GraphStage("m version 3, onnx-fp32", 0.4, 0.5, 0.92, -0.02, size_bytes=4096)
    kept = GraphCertificate.from_json(replace(CERTIFICATE, reference=beside).to_json())
    assert kept.reference == beside
    assert [stage.name for stage in kept.stages] == ["pytorch", "onnx-fp32"]


def test_a_certificate_of_before_there_were_references_and_sizes_can_be_read() -> None:
    values = json.loads(CERTIFICATE.to_json())
    del values["reference"]
    del values["forms"]
    for stage in values["stages"]:
        del stage["size_bytes"]
    assert GraphCertificate.from_json(json.dumps(values)) == CERTIFICATE


def test_a_certificate_of_before_the_unigram_and_the_live_stage_were_kept_can_be_read() -> None:
    values = json.loads(LANGUAGE.to_json())
    for name in ("unigram", "live", "tokens_fingerprint"):
        del values[name]
    assert LanguageCertificate.from_json(json.dumps(values)) == LANGUAGE
