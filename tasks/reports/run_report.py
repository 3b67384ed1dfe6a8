"""Results as Prefect artifacts: a Markdown table of the run, and links."""

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from prefect.artifacts import create_link_artifact, create_markdown_artifact

from millrace.models.common.installation import Installation
from millrace.models.config.pipeline import Pipeline
from millrace.models.registry.mlflow_pages import page, version_page

if TYPE_CHECKING:
    from millrace.export.candidate import Candidate
    from millrace.export.certificate import Certificate, Stage
    from millrace.models.data.snapshots import Snapshot
    from millrace.models.registry.gates import Promotion
    from millrace.models.registry.tracking import TrackedRun
    from millrace.models.registry.version_files import ModelVersion
    from millrace.serving.batch.monitoring.batch_report import BatchReport
    from millrace.serving.release.live import Served
    from millrace.serving.release.outcome import Outcome
    from millrace.serving.release.release_state import Release


def publish_training(
    pipeline: Pipeline,
    places: Installation,
    *,
    snapshot: "Snapshot",
    candidates: "Sequence[Candidate]",
    certificate: "Certificate",
    version: "ModelVersion",
    promotion: "Promotion",
    run: "TrackedRun",
) -> None:
    """Publish what a training run came to."""
    facts = [
        ("snapshot", f"version {snapshot.version}, {snapshot.rows:,} rows"),
        ("quarantined", f"{snapshot.quarantined:,}"),
        ("model", f"{version.model} version {version.version}"),
        ("digest", f"`{version.digest[:16]}…`"),
        ("champion", f"{'yes' if promotion.champion else 'no'}: {promotion.reason}"),
    ]
    text = "\n\n".join(
        [
            f"# {pipeline.name}",
            table(("", ""), facts),
            "## Candidates",
            candidates_table(candidates, certificate),
            "## Certificate",
            certificate_table(certificate),
        ]
    )
    create_markdown_artifact(
        text, key=key_of(pipeline.name, "training"), description="training run"
    )
    if places.tracking_uri.startswith("http"):
        link = page(places.tracking_uri, run.path)
        create_link_artifact(link, "run in MLflow", key=key_of(pipeline.name, "mlflow-run"))
        link = version_page(places.tracking_uri, version.model, version.version)
        create_link_artifact(link, "version in MLflow", key=key_of(pipeline.name, "mlflow-version"))


def run_link() -> str:
    """Return where the page of the flow run that is under way is; empty outside of one."""
    from prefect.runtime import flow_run

    return str(flow_run.ui_url or "") if flow_run.id else ""


def publish_release(outcomes: "Iterable[Outcome]", served: "Iterable[Served]") -> None:
    """Publish what a release changed, what it could not change, and what is live now."""
    rows = []
    for outcome in outcomes:
        state = "live" if outcome.error is None else outcome.error.seen or outcome.error.what
        wanted = outcome.version if outcome.version is not None else "none"
        changed = f"{outcome.previous or 'none'} → {wanted}" if outcome.changed else str(wanted)
        row = (outcome.model, changed, outcome.endpoint.grpc, f"{outcome.seconds:.2f} s", state)
        rows.append(row)
        link = f"http://{outcome.endpoint.http}/v2/models/{outcome.model}/config"
        create_link_artifact(link, "model on Triton", key=key_of(outcome.model, "triton"))
    did = table(("model", "version", "Triton", "took", "state"), rows)
    live = table(("model", "version", "replicas", "since", "note"), map(_served_row, served))
    text = f"# Release\n\n{did}\n\n## What is live\n\n{live}"
    create_markdown_artifact(text, key="release", description="release")


def _served_row(served: "Served") -> tuple[str, ...]:
    """Return where a model stands, for people."""
    version = "none" if served.version is None else str(served.version)
    return (served.model, version, served.replicas, served.since or "", served.note)


def publish_batch(pipeline: Pipeline, report: "BatchReport") -> None:
    """Publish what a batch job did."""
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


def certificate_table(certificate: "Certificate") -> str:
    """Return the stages of a certificate, and what it is shown beside, as a Markdown table."""
    rows = [
        (
            stage.name + (" (chosen)" if stage.name == certificate.candidate else ""),
            f"{stage.golden_difference:.2e}",
            *_stage_cells(stage),
        )
        for stage in certificate.stages
    ]
    if (reference := certificate.reference) is not None:
        # A difference from another model's answers would say nothing.
        rows.append((f"beside it: {reference.name}", "", *_stage_cells(reference)))
    metric = f"{certificate.metric_name} on {certificate.test_rows:,} test rows"
    text = table(("stage", "largest golden difference", metric, "loss", "size"), rows)
    if not certificate.batch_sizes:
        return text
    sizes = ", ".join(map(str, certificate.batch_sizes))
    return f"{text}\n\n{certificate.golden_rows} golden rows in requests of {sizes}."


def _stage_cells(stage: "Stage") -> tuple[str, str, str]:
    return (
        _measured(stage.metric),
        "" if stage.metric_loss is None else f"{stage.metric_loss:+.2%}",
        "" if stage.size_bytes is None else f"{stage.size_bytes / 1024:,.0f} KiB",
    )


EVENTS = {"live": "went live; the tag millrace.status says what it is now"}


def release_table(release: "Release") -> str:
    """Return what a release came to as a Markdown table."""
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


def candidates_table(candidates: "Sequence[Candidate]", certificate: "Certificate") -> str:
    """Return every form of the model as a Markdown table; those on the Pareto front have a star."""
    from millrace.export.candidate import pareto

    head = (
        *("candidate", "size", "p50", "p99", "rows/s", "memory"),
        *(certificate.metric_name, "95% interval", "worst class", "loss", "verdict"),
    )
    front = {candidate.name for candidate in pareto(candidates)}
    rows = [candidate_row(each, certificate, each.name in front) for each in candidates]
    measured = f"Measured on {certificate.machine}." if certificate.machine else ""
    star = "★ no other form is better in metric, p50, rows/s and size at once."
    searches = [
        f"{each.name}:\n" + "\n".join(f"- {note}" for note in each.notes)
        for each in candidates
        if each.notes
    ]
    ties = dict.fromkeys(c.stage.ties for c in candidates if c.stage and c.stage.ties)
    tied = [f"With TensorRT: {each}." for each in ties]
    told = " ".join(filter(None, (measured, *tied, star)))
    return "\n\n".join((table(head, rows), told, *searches))


def candidate_row(
    candidate: "Candidate", certificate: "Certificate", in_front: bool = False
) -> tuple[str, ...]:
    """Return what was measured of a candidate, and its verdict, for people."""
    stage, speed = candidate.stage, candidate.speed
    if stage is None or speed is None:
        return (candidate.name, *[""] * 9, candidate.reason or "")
    passed = "passed; an engine, not served" if candidate.is_engine else "passed"
    verdict = "chosen" if candidate.name == certificate.candidate else passed
    ends = (stage.metric_low, stage.metric_high)
    return (
        f"{candidate.name}{' ★' if in_front else ''}",
        f"{candidate.size_bytes / 1024:,.0f} KiB",
        f"{speed.p50_ms:.3f} ms",
        f"{speed.p99_ms:.3f} ms",
        f"{speed.rows_per_second:,.0f}",
        f"{speed.peak_memory_bytes / 2**20:,.0f} MiB",
        _measured(stage.metric),
        "" if None in ends else f"{stage.metric_low:.4f} to {stage.metric_high:.4f}",
        f"{stage.worst_class}: {_measured(stage.worst_metric)}" if stage.worst_class else "",
        "" if stage.metric_loss is None else f"{stage.metric_loss:.2%}",
        candidate.reason or verdict,
    )


def _measured(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(
        "| " + " | ".join(str(c).replace("|", "\\|") for c in line) + " |" for line in lines
    )


def key_of(*parts: str) -> str:
    """Return an artifact key: Prefect takes small letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", "-".join(parts)).strip("-")
