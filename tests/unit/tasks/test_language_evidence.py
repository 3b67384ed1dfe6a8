"""What a release reads of a language model's files."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from millrace.export.certificate import CertifiedVariant
from millrace.export.language.language_certificate import (
    LanguageCertificate,
    LanguageStage,
    LiveStage,
)
from millrace.models.common.errors import InputError, WorkError
from millrace.models.common.hardware import this_machine
from millrace.models.common.installation import Installation
from millrace.models.config.pipeline import Pipeline
from millrace.models.config.pipeline_file import resolved_yaml
from millrace.models.registry.version_files import KIND_TAG, ModelVersion, Package
from millrace.tasks.kinds.language.language_evidence import LanguageEvidence
from millrace.tasks.kinds.language.language_files import language_files
from millrace.tasks.kinds.steps import steps_of

VARIANT = "openvino-int8"
GOLDEN = {"prompts": ["a"], "answers": ["b"], "max_tokens": 3, "exact": False}


@pytest.fixture
def package(tmp_path: Path) -> Package:
    pipeline = Pipeline.model_validate(
        {
            "name": "lm",
            "dataset": {"source": "r.jsonl", "target": "text", "features": []},
            "model": {"family": "causal_lm"},
            "serving": {"generation": {"max_num_seqs": 7}, "latency_slo_ms": 250},
        }
    )
    certificate = LanguageCertificate(
        model="lm",
        candidate=VARIANT,
        digest="f" * 64,
        dataset="texts",
        dataset_version=3,
        dataset_digest="d" * 64,
        max_perplexity_increase=0.01,
        passed=True,
        machine="a machine",
        machine_kind=this_machine().kind,
        forms=(
            CertifiedVariant(VARIANT, "f" * 64, LanguageStage(VARIANT, 12.5, size_bytes=2**20)),
        ),
    )
    (tmp_path / "form").mkdir()
    (tmp_path / "form" / "openvino_model.bin").write_bytes(b"weights")
    (tmp_path / "pipeline.yaml").write_text(resolved_yaml(pipeline))
    (tmp_path / "certificate.json").write_text(certificate.to_json())
    (tmp_path / "golden.json").write_text(json.dumps(GOLDEN))
    files = {"openvino_model.bin": tmp_path / "form" / "openvino_model.bin"}
    version = ModelVersion("lm", 4, "f" * 64, "run", tags={KIND_TAG: "language"})
    return Package(version, files, tmp_path)


def evidence(package: Package) -> LanguageEvidence:
    return LanguageEvidence(language_files(package), Installation(package.folder, "", ""))


def changed(package: Package, **values: object) -> Package:
    file = package.folder / "certificate.json"
    certificate = LanguageCertificate.from_json(file.read_text())
    file.write_text(replace(certificate, **values).to_json())
    return package


def test_a_package_is_read_as_what_it_is(package: Package) -> None:
    installation = Installation(package.folder, "", "")
    assert steps_of(package.version.kind).evidence(package, installation) == evidence(package)


def test_its_files_are_staged_as_the_pipeline_file_says(package: Package) -> None:
    artifact = evidence(package).artifact()
    assert (artifact.kind, artifact.sha256) == ("language", "f" * 64)
    assert dict(artifact.files) == dict(package.files)
    assert artifact.serving.generation.max_num_seqs == 7


def test_it_must_answer_its_golden_prompts(package: Package) -> None:
    expected = evidence(package).expected()
    assert (expected.prompts, expected.answers, expected.max_tokens) == (("a",), ("b",), 3)
    assert (expected.exact, expected.latency_slo_ms, expected.caution) == (False, 250, "")
    other = evidence(changed(package, machine_kind="another")).expected()
    assert "chosen on a machine; this machine has" in other.caution


def test_of_another_kind_of_machine_no_answer_is_exact(package: Package) -> None:
    (package.folder / "golden.json").write_text(json.dumps(GOLDEN | {"exact": True}))
    assert evidence(package).expected().exact is True
    assert evidence(changed(package, machine_kind="another")).expected().exact is False


@pytest.mark.parametrize("text", ["", "[]", '{"prompts": ["a"]}'])
def test_golden_answers_that_cannot_be_read(package: Package, text: str) -> None:
    (package.folder / "golden.json").write_text(text)
    with pytest.raises((InputError, WorkError), match="golden answers"):
        evidence(package).expected()


def test_it_was_certified_with_its_perplexity(package: Package) -> None:
    found = evidence(package).measured()
    assert (found.passed, found.metric, found.name) == (True, 12.5, "perplexity")
    assert found.smaller_is_better
    assert not evidence(changed(package, digest="0" * 64)).measured().passed


def test_it_reports_the_table_of_its_variants(package: Package) -> None:
    text, certificate = evidence(package).describe(None)
    assert VARIANT in text
    assert "Triton" not in text
    found = LanguageCertificate.from_json(certificate)
    assert (found.candidate, found.live) == (VARIANT, None)


def test_what_the_live_server_answers_otherwise_is_in_the_certificate(
    package: Package,
) -> None:
    text, certificate = evidence(package).describe(0.125)
    assert "12.5% of the live Triton's golden answers differ from the certified ones." in text
    assert LanguageCertificate.from_json(certificate).live == LiveStage(0.125)


def test_a_release_asks_few_of_the_prompts(package: Package) -> None:
    many = [str(number) for number in range(64)]
    golden = GOLDEN | {"prompts": many, "answers": many, "transformers": many}
    (package.folder / "golden.json").write_text(json.dumps(golden))
    assert len(evidence(package).golden().prompts) == 64
    expected = evidence(package).expected()
    assert expected.prompts == expected.answers == expected.transformers == tuple(many[:8])
