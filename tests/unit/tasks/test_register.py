"""The steps that keep a run's evidence, and register the certified candidate."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from millrace.export.certificate import certify_candidates
from millrace.export.language.language_certificate import (
    LanguageCandidate,
    LanguageCertificate,
    LanguageStage,
)
from millrace.models.common.digest import digest_of, digest_of_model
from millrace.models.common.errors import WorkError
from millrace.models.common.installation import Installation
from millrace.models.config.model_kind import ModelKind, kind_named
from millrace.models.config.pipeline import Pipeline
from millrace.models.data.schema import TableSchema
from millrace.models.data.snapshots import Snapshot
from millrace.models.registry.mlflow_registry import registry_of
from millrace.models.registry.tracking import TrackedRun, client, tracked_run
from millrace.models.registry.version_files import ModelVersion
from millrace.tasks.kinds.language.language_files import language_files
from millrace.tasks.kinds.steps import Exported, KindReport
from millrace.tasks.register import log_evidence, register_version

KIND = kind_named("language")
PIPELINE = Pipeline.model_validate(
    {
        "name": "lm",
        "dataset": {"source": "r.jsonl", "target": "text", "features": []},
        "model": {"family": "causal_lm"},
    }
)
SNAPSHOT = Snapshot("texts", "uri", 3, "d" * 64, 10, TableSchema((), (), "text", ()), {}, {})
REPORT = KindReport(
    metrics={"variant.openvino-int8.perplexity": 12.5},
    texts={"samples.md": "what it writes"},
    tags={"millrace.perplexity": "12.5000"},
    description="# How good it is",
    facts=(),
    sections=(),
    rows=(),
)
REFUSED = "perplexity increase 2.00% is more than the limit of 1.00%"


@dataclass
class FakeExport:
    """An export that left a command and a folder of programs."""

    folder: Path

    def reproduction(self) -> tuple[Path, ...]:
        return self.folder / "commands.sh", self.folder / "conversions"


@pytest.fixture
def exported(tmp_path: Path) -> Exported:
    """An export whose candidate passed; another one cannot be served."""
    variant, programs = tmp_path / "openvino-int8", tmp_path / "conversions"
    variant.mkdir()
    programs.mkdir()
    for name in ("openvino_model.xml", "openvino_model.bin"):
        (variant / name).write_text(name)
    (programs / "int8.py").write_text("")
    (tmp_path / "compared").mkdir()
    for name in ("commands.sh", "golden.json", "pipeline.yaml", "compared/model.onnx"):
        (tmp_path / name).write_text("{}")
    files = {file.name: file for file in variant.iterdir()}
    digest = digest_of_model({name: digest_of(file) for name, file in files.items()})
    stage = LanguageStage("openvino-int8", 12.5, 0.01)
    chosen = LanguageCandidate("openvino-int8", variant, digest, stage=stage)
    compared = LanguageCandidate("onnx-genai-int4", tmp_path / "compared", is_served=False)
    candidates = (compared, chosen)
    certificate = LanguageCertificate(
        model="lm",
        candidate=chosen.name,
        digest=digest,
        dataset="texts",
        dataset_version=3,
        dataset_digest="d" * 64,
        passed=True,
        max_perplexity_increase=0.01,
        stages=(LanguageStage("transformers", 12.4),),
        forms=certify_candidates(candidates),
    )
    (tmp_path / "certificate.json").write_text(certificate.to_json())
    evidence = {name: tmp_path / name for name in KIND.evidence_files}
    return Exported(FakeExport(tmp_path), candidates, chosen, certificate, files, evidence)


@dataclass
class Run:
    """A run that keeps what it is told."""

    texts: dict[str, str] = field(default_factory=dict)
    files: list[tuple[str, str | None]] = field(default_factory=list)

    def log_report(self, texts: Mapping[str, str], pictures: Mapping[str, bytes]) -> None:
        self.texts.update(texts)
        assert not pictures

    def log_file(self, file: Path, folder: str | None = None) -> None:
        self.files.append((file.name, folder))


def logged(exported: Exported, report: KindReport = REPORT) -> Run:
    """Return the run that `log_evidence` has written to."""
    run: Any = Run()
    log_evidence(exported, report, run)
    return run  # type: ignore[no-any-return]


def test_a_run_keeps_the_certificate_and_what_its_kind_reports(exported: Exported) -> None:
    assert logged(exported).texts == {
        "certificate.json": exported.certificate.to_json(),
        "samples.md": "what it writes",
    }


def test_a_run_keeps_what_makes_the_candidates_again_and_none_that_can_be_made(
    exported: Exported,
) -> None:
    assert logged(exported).files == [
        ("commands.sh", "export"),
        ("conversions", "export/conversions"),
    ]


def test_a_run_keeps_the_files_that_its_kind_says(exported: Exported, tmp_path: Path) -> None:
    (tmp_path / "e.plan").write_text("engine")
    run = logged(exported, replace(REPORT, files=(tmp_path / "e.plan",)))
    assert run.files[-1] == ("e.plan", "export")


@pytest.fixture
def run(mlflow_places: Installation) -> Iterator[TrackedRun]:
    with tracked_run(mlflow_places, "lm", {}, system_metrics=False) as opened:
        yield opened


def registered(
    installation: Installation, exported: Exported, run: TrackedRun, kind: ModelKind = KIND
) -> ModelVersion:
    found = register_version.fn(kind, PIPELINE, installation, SNAPSHOT, exported, REPORT, run)
    return registry_of(installation).version(found.model, found.version)


def test_the_chosen_candidate_is_a_version_with_its_tags_and_its_page(
    mlflow_places: Installation, exported: Exported, run: TrackedRun
) -> None:
    found = registered(mlflow_places, exported, run)
    assert (found.model, found.kind, found.run_id) == ("lm", KIND, run.run_id)
    assert found.digest == exported.chosen.digest
    wanted = {
        "millrace.candidate": "openvino-int8",
        "millrace.certificate": "passed",
        "millrace.dataset": "texts version 3",
        "millrace.dataset_digest": "d" * 64,
        "millrace.perplexity": "12.5000",
        "millrace.kind": "language",
    }
    assert {name: found.tags.get(name) for name in wanted} == wanted
    store = client(mlflow_places.tracking_uri)
    page = store.get_model_version("lm", str(found.version)).description
    assert page == "# How good it is"
    kept = store.get_run(run.run_id)
    assert kept.info.run_name == f"lm version {found.version}"
    assert kept.data.metrics == REPORT.metrics


def test_the_logged_model_has_the_metrics_and_the_parameters_of_its_run(
    mlflow_places: Installation, exported: Exported, run: TrackedRun
) -> None:
    run.log_params({"model": {"family": "causal_lm"}})
    run.log_metrics({"train_loss": 3.0}, step=1)
    registered(mlflow_places, exported, run)
    store = client(mlflow_places.tracking_uri)
    outputs = store.get_run(run.run_id).outputs
    assert outputs is not None
    (model,) = (store.get_logged_model(each.model_id) for each in outputs.model_outputs)
    assert {each.key: each.value for each in model.metrics or ()} == REPORT.metrics
    assert model.params == {"model.family": "causal_lm"}
    assert model.status.name == "READY"


def test_a_model_that_cannot_be_written_is_a_failed_one_and_no_version(
    mlflow_places: Installation, exported: Exported, run: TrackedRun
) -> None:
    lost = replace(exported, files={"openvino_model.xml": Path("/nowhere.xml")})
    store = client(mlflow_places.tracking_uri)
    before = len(store.search_model_versions("name='lm'"))
    with pytest.raises(FileNotFoundError, match="nowhere"):
        registered(mlflow_places, lost, run)
    outputs = store.get_run(run.run_id).outputs
    assert outputs is not None
    (model,) = (store.get_logged_model(each.model_id) for each in outputs.model_outputs)
    assert model.status.name == "FAILED"
    assert len(store.search_model_versions("name='lm'")) == before


def test_what_is_registered_is_what_was_exported(
    mlflow_places: Installation, exported: Exported, run: TrackedRun
) -> None:
    found = registered(mlflow_places, exported, run)
    package = registry_of(mlflow_places).fetch(found)
    assert language_files(package).folder == package.folder / "form"
    assert {name: file.read_text() for name, file in package.files.items()} == {
        name: name for name in exported.files
    }
    for name, file in exported.evidence.items():
        assert package.text(name) == file.read_text()


def test_why_a_candidate_did_not_pass_is_a_tag_of_its_version(
    mlflow_places: Installation, exported: Exported, run: TrackedRun
) -> None:
    refused = replace(
        exported,
        chosen=replace(exported.chosen, reason=REFUSED),
        certificate=replace(exported.certificate, passed=False),
    )
    found = registered(mlflow_places, refused, run)
    assert found.tags["millrace.certificate"] == f"failed: {REFUSED}"


def test_a_candidate_that_was_not_measured_is_refused(
    mlflow_places: Installation, exported: Exported, run: TrackedRun
) -> None:
    chosen = LanguageCandidate("openvino-int8", reason="its conversion crashed")
    store = client(mlflow_places.tracking_uri)
    before = store.search_model_versions("name='lm'")
    with pytest.raises(WorkError, match="openvino-int8 was chosen, but was not measured") as told:
        registered(mlflow_places, replace(exported, chosen=chosen), run)
    assert told.value.seen == "its conversion crashed"
    assert len(store.search_model_versions("name='lm'")) == len(before)
