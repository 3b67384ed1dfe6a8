"""Step: from a certified candidate to a version in the registry."""

from millrace.models.common.errors import WorkError
from millrace.models.common.installation import Installation
from millrace.models.config.pipeline import Pipeline
from millrace.models.data.snapshots import Snapshot
from millrace.models.registry.mlflow_registry import registry_of
from millrace.models.registry.tracking import TrackedRun
from millrace.models.registry.version_files import ModelVersion
from millrace.tasks.export import Exported
from millrace.tasks.progress import log
from millrace.tasks.reports.run_report import candidates_table, certificate_table
from millrace.tasks.retry import step
from millrace.tasks.train import Trained


@step(timeout_seconds=900)
def register_version(
    pipeline: Pipeline,
    places: Installation,
    snapshot: Snapshot,
    exported: Exported,
    run: TrackedRun,
) -> ModelVersion:
    """Register the chosen candidate with its evidence."""
    certificate, chosen = exported.certificate, exported.chosen
    if chosen.path is None or chosen.stage is None:
        raise WorkError(f"{chosen.name} was chosen, but was not made", seen=chosen.reason)
    tags = {
        "millrace.candidate": chosen.name,
        "millrace.certificate": "passed" if certificate.passed else f"failed: {chosen.reason}",
        f"millrace.{certificate.metric_name}": f"{chosen.stage.metric:.4f}",
        "millrace.metric_loss": f"{chosen.stage.metric_loss:.4%}",
        "millrace.golden_difference": f"{chosen.stage.golden_difference:.2e}",
        "millrace.dataset": f"{snapshot.name} version {snapshot.version}",
        "millrace.dataset_digest": snapshot.digest,
    }
    registry = registry_of(places)
    version = registry.register(run, pipeline.name, chosen.path, exported.files, tags)
    registry.describe(version, certificate_table(certificate))
    run.rename(f"{version.model} version {version.version}")
    log.info("registered %s version %s (%s)", version.model, version.version, chosen.name)
    return version


@step(timeout_seconds=300)
def log_evidence(pipeline: Pipeline, trained: Trained, exported: Exported, run: TrackedRun) -> None:
    """Log certificate, candidates, curves and pictures to the run."""
    from millrace.models.training.plots import (
        confusion_matrix,
        learning_curves,
        predicted_against_true,
    )

    certificate, labels = exported.certificate, trained.encoding.labels
    run.log_text(certificate.to_json(), "certificate.json")
    run.log_text(trained.encoding.to_json(), "encoding.json")
    run.log_figure(
        learning_curves(trained.history, certificate.metric_name), "plots/learning_curves.png"
    )
    answers, target = exported.answers, exported.target
    if labels:
        matrix = confusion_matrix(answers.argmax(axis=1), target, labels)
        run.log_figure(matrix, "plots/confusion_matrix.png")
    else:
        figure = predicted_against_true(answers[:, 0], target)
        run.log_figure(figure, "plots/predicted_against_true.png")
    log_candidates(exported, run, pipeline.export.objective)


def log_candidates(exported: Exported, run: TrackedRun, objective: str) -> None:
    """Log every form that was measured, and what makes it again."""
    from millrace.export.candidate import pareto
    from millrace.models.training.plots import FormPoint, pareto_front

    certificate, points = exported.certificate, []
    front = {candidate.name for candidate in pareto(exported.candidates)}
    for candidate in exported.candidates:
        stage, speed = candidate.stage, candidate.speed
        if stage is None or speed is None or stage.metric is None:
            continue
        values = {
            certificate.metric_name: stage.metric,
            "difference": stage.test_difference or 0.0,
            "size_bytes": candidate.size_bytes,
            **vars(speed),
        }
        run.log_metrics({f"test.{candidate.name}.{k}": float(v) for k, v in values.items()})
        in_front, refused = candidate.name in front, candidate.reason is not None
        size, metric = candidate.size_bytes, stage.metric
        cost = 1e3 / speed.rows_per_second if objective == "throughput" else speed.p50_ms
        chosen = candidate.name == certificate.candidate
        points.append(FormPoint(candidate.name, cost, metric, size, in_front, refused, chosen))
    run.log_text(candidates_table(exported.candidates, certificate), "export/candidates.md")
    if points:
        cost_of = "a row of a full batch" if objective == "throughput" else "p50 of one row"
        figure = pareto_front(points, certificate.metric_name, cost_of)
        run.log_figure(figure, "plots/candidates.png")
    engines = [c.path for c in exported.candidates if c.is_engine and c.path is not None]
    for path in (*exported.reproduction, *engines):
        run.log_file(path, f"export/{path.name}" if path.is_dir() else "export")
