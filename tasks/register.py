"""Steps: a run's evidence in MLflow, and the certified candidate as a version in the registry."""

from typing import Any

from millrace.models.common.errors import WorkError
from millrace.models.common.installation import Installation
from millrace.models.config.model_kind import ModelKind
from millrace.models.config.pipeline import Pipeline
from millrace.models.data.snapshots import Snapshot
from millrace.models.registry.mlflow_registry import registry_of
from millrace.models.registry.tracking import TrackedRun
from millrace.models.registry.version_files import ModelVersion
from millrace.tasks.kinds.steps import Exported, KindReport, Trained, steps_of
from millrace.tasks.progress import log
from millrace.tasks.retry import step


@step(timeout_seconds=300)
def log_evidence(
    kind: ModelKind,
    pipeline: Pipeline,
    snapshot: Snapshot,
    trained: Trained[Any],
    exported: Exported,
    run: TrackedRun,
) -> KindReport:
    """Log certificate, candidates, pictures and what makes the candidates again to the run."""
    report = steps_of(kind).report(pipeline, snapshot, trained, exported)
    run.log_metrics(report.metrics)
    for path, text in {"certificate.json": exported.certificate.to_json(), **report.texts}.items():
        run.log_text(text, path)
    for path, figure in report.figures.items():
        run.log_figure(figure, path)
    for file in (*exported.export.reproduction(), *report.files):
        run.log_file(file, f"export/{file.name}" if file.is_dir() else "export")
    return report


@step(timeout_seconds=900)
def register_version(
    kind: ModelKind,
    pipeline: Pipeline,
    installation: Installation,
    snapshot: Snapshot,
    exported: Exported,
    report: KindReport,
    run: TrackedRun,
) -> ModelVersion:
    """Register the chosen candidate with its evidence."""
    certificate, chosen = exported.certificate, exported.chosen
    if chosen.stage is None:
        raise WorkError(f"{chosen.name} was chosen, but was not measured", seen=chosen.reason)
    tags = {
        "millrace.candidate": chosen.name,
        "millrace.certificate": "passed" if certificate.passed else f"failed: {chosen.reason}",
        "millrace.dataset": f"{snapshot.name} version {snapshot.version}",
        "millrace.dataset_digest": snapshot.digest,
        **report.tags,
    }
    registry, log_model = registry_of(installation), steps_of(kind).log_model
    version = registry.register(
        run, pipeline.name, kind, exported.files, exported.evidence, tags, log_model
    )
    registry.describe(version, report.description)
    run.rename(f"{version.model} version {version.version}")
    log.info("registered %s version %s (%s)", version.model, version.version, chosen.name)
    return version
