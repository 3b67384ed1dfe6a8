"""Results as Prefect artifacts: a Markdown table of the run, and links."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from prefect.artifacts import create_link_artifact, create_markdown_artifact

from millrace.models.common.counted import counted
from millrace.models.common.errors import WorkError
from millrace.models.common.installation import Installation
from millrace.models.config.pipeline import Pipeline
from millrace.models.registry.mlflow_pages import page, version_page
from millrace.tasks.progress import log
from millrace.tasks.reports.markdown import html_page, key_of, table

if TYPE_CHECKING:
    from millrace.models.data.snapshots import Snapshot
    from millrace.models.registry.gates import Promotion
    from millrace.models.registry.tracking import TrackedRun
    from millrace.models.registry.version_files import ModelVersion
    from millrace.serving.batch.monitoring.batch_report import BatchReport
    from millrace.serving.release.live import Served
    from millrace.serving.release.outcome import Outcome
    from millrace.serving.release.release_state import Release
    from millrace.tasks.kinds.steps import KindReport
    from millrace.tasks.reports.drawing import Drawing


def publish_training(
    name: str,
    installation: Installation,
    *,
    snapshot: "Snapshot",
    report: "KindReport",
    version: "ModelVersion",
    promotion: "Promotion",
    run: "TrackedRun",
    drawing: "Drawing",
) -> None:
    """Publish the result of a run: as a Prefect artifact, and as a page with pictures in MLflow.

    This is the last step: if the pictures cannot be drawn, or if MLflow fails to store them and the
    page, a warning is logged and the run succeeds.
    """
    from mlflow.exceptions import MlflowException

    facts = [
        ("snapshot", f"version {snapshot.version}, {counted(snapshot.rows, 'row')}"),
        ("quarantined", f"{snapshot.quarantined:,}"),
        *report.facts,
        ("model", f"{version.model} version {version.version}"),
        ("digest", f"`{version.digest[:16]}…`"),
        ("champion", f"{'yes' if promotion.champion else 'no'}: {promotion.reason}"),
    ]
    if promotion.beside and promotion.beside.verdict:
        facts.append((f"against version {promotion.beside.version}", promotion.beside.verdict))
    sections = [f"## {title}\n\n{text}" for title, text in report.sections]
    text = "\n\n".join([f"# {name}", table(("", ""), facts), *sections])
    create_markdown_artifact(text, key=key_of(name, "training"), description="training run")
    if installation.tracking_uri.startswith("http"):
        link = page(installation.tracking_uri, run.path)
        create_link_artifact(link, "run in MLflow", key=key_of(name, "mlflow-run"))
        link = version_page(installation.tracking_uri, version.model, version.version)
        create_link_artifact(link, "version in MLflow", key=key_of(name, "mlflow-version"))
    title = f"{version.model} version {version.version}"
    pictures: dict[str, bytes] = {}
    try:
        pictures = drawing.pictures()
    except WorkError as error:
        log.warning("this run has no pictures: %s", error.what)
    try:
        summary = table(("", ""), [*report.rows, *facts])
        run.describe(f"{summary}\n\n{_links(run, version)}")
        run.log_report({"report.html": html_page(title, text, pictures)}, pictures)
    except (MlflowException, OSError) as error:
        log.warning(
            "the report of this run could not be stored in MLflow: %s", str(error).splitlines()[0]
        )


def _links(run: "TrackedRun", version: "ModelVersion") -> str:
    """Return links from a run's page in MLflow to what belongs to it."""
    artifacts = f"{run.path}/artifacts"
    links = {
        "version": f"#/models/{version.model}/versions/{version.version}",
        "report with pictures": f"{artifacts}/report.html",
        "pictures": f"{artifacts}/plots",
        "pipeline file": f"{artifacts}/pipeline.yaml",
        "flow run in Prefect": run_link(),
    }
    return " · ".join(f"[{name}]({address})" for name, address in links.items() if address)


def run_link() -> str:
    """Return the URL of the current flow run's page; empty outside of a flow run."""
    from prefect.runtime import flow_run

    return str(flow_run.ui_url or "") if flow_run.id else ""


def publish_release(outcomes: "Iterable[Outcome]", served: "Iterable[Served]") -> None:
    """Publish what a release changed, what it could not change, and what is live now."""
    rows = []
    for outcome in outcomes:
        state = "live" if outcome.error is None else outcome.error.seen or outcome.error.what
        wanted = outcome.version if outcome.version is not None else "none"
        changed = f"{outcome.previous or 'none'} → {wanted}" if outcome.changed else str(wanted)
        row = (outcome.model, changed, str(outcome.endpoint), f"{outcome.seconds:.2f} s", state)
        rows.append(row)
        link = f"http://{outcome.endpoint.http}/v2/models/{outcome.model}/config"
        create_link_artifact(link, "model on Triton", key=key_of(outcome.model, "triton"))
    did = table(("model", "version", "Triton", "took", "state"), rows)
    live = table(("model", "version", "replicas", "since", "note"), map(_served_row, served))
    text = f"# Release\n\n{did}\n\n## What is live\n\n{live}"
    create_markdown_artifact(text, key="release", description="release")


def _served_row(served: "Served") -> tuple[str, ...]:
    """Return a served model as the cells of a table row."""
    version = "none" if served.version is None else str(served.version)
    return (served.model, version, served.replicas, served.since or "", served.note)


def publish_batch(pipeline: Pipeline, report: "BatchReport") -> None:
    """Publish the result of a batch job."""
    facts = [
        ("date", report.date),
        ("model", f"{report.model} version {report.model_version}"),
        ("table", f"`{report.table}` version {report.table_version}"),
        ("rows", f"{report.rows:,}, {report.dead:,} of them dead letters"),
        ("rows per second", f"{report.rows_per_second:,.0f}"),
        ("rows per day", f"{report.rows_per_day:,.0f}"),
        *([("as live", str(report.agreement))] if report.agreement else []),
    ]
    text = f"# {pipeline.name}: batch of {report.date}\n\n" + table(("", ""), facts)
    create_markdown_artifact(text, key=key_of(pipeline.name, "batch"), description="batch job")


EVENTS = {"live": "went live; the tag millrace.status shows its present state"}


def release_table(release: "Release") -> str:
    """Return the result of a release as a Markdown table."""
    facts = [
        ("last event", EVENTS.get(release.kind, release.kind)),
        ("at", f"{release.at:%Y-%m-%d %H:%M:%S} UTC"),
        ("asked by", release.asked_by),
        ("before", "none" if release.previous is None else f"version {release.previous}"),
        ("reason", release.reason),
        *((name.replace("_", " "), _value(value)) for name, value in release.evidence.items()),
    ]
    return table(("", ""), [fact for fact in facts if fact[1]])


def _value(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
