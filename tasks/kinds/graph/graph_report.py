"""The report on a training run of the kind `graph`: metrics, tables and pictures."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from millrace.export.onnx.graph_certificate import GraphCandidate, GraphCertificate, GraphStage
from millrace.export.select import Gates, pareto_front
from millrace.models.config.pipeline import Pipeline
from millrace.models.data.snapshots import Snapshot
from millrace.tasks.kinds.graph.graph_files import ENCODING
from millrace.tasks.kinds.steps import Exported, KindReport, Row, Trained
from millrace.tasks.reports.drawing import Draw
from millrace.tasks.reports.markdown import table
from millrace.tasks.reports.plots import (
    VariantPoint,
    confusion_matrix,
    learning_curves,
    pareto_picture,
    predicted_against_true,
)

if TYPE_CHECKING:
    from millrace.tasks.kinds.graph.graph_export import GraphExport
    from millrace.tasks.kinds.graph.graph_train import GraphTraining  # imports torch

GATES = Gates(0.0)
"""Any limits do here, because the Pareto front does not depend on them."""


def report_graph(
    pipeline: Pipeline, snapshot: Snapshot, trained: "Trained[GraphTraining]", exported: Exported
) -> KindReport:
    """Return the report on a training run."""
    certificate: GraphCertificate = exported.certificate
    stage: Any = exported.chosen.stage
    candidates = candidates_table(exported.candidates, certificate)
    return KindReport(
        metrics=dict(_metrics(exported.candidates, certificate)),
        texts={ENCODING: trained.details.encoding.to_json(), "export/candidates.md": candidates},
        tags={
            f"millrace.{certificate.metric_name}": f"{stage.metric:.4f}",
            "millrace.metric_loss": f"{stage.metric_loss:.4%}",
            "millrace.golden_difference": f"{stage.golden_difference:.2e}",
        },
        description=describe_version(certificate),
        facts=(),
        sections=(("Candidates", candidates), ("Certificate", certificate_table(certificate))),
        rows=tuple(_rows(exported.candidates, certificate)),
        # A TensorRT engine is built for one GPU, and cannot be rebuilt on another machine.
        files=tuple(each.path for each in exported.candidates if each.path and not each.is_served),
    )


def _metrics(
    candidates: Sequence[GraphCandidate], certificate: GraphCertificate
) -> Iterator[tuple[str, float]]:
    for each in candidates:
        if each.stage is None or each.speed is None or each.stage.metric is None:
            continue
        values = {
            certificate.metric_name: each.stage.metric,
            "difference": each.stage.test_difference or 0.0,
            "size_bytes": each.size_bytes,
            **vars(each.speed),
        }
        yield from ((f"variant.{each.name}.{name}", float(v)) for name, v in values.items())
        if each.name == certificate.candidate:
            yield f"test.{certificate.metric_name}", float(each.stage.metric)


def draw_training(trained: "Trained[GraphTraining]") -> dict[str, Draw]:
    """Return what draws the pictures of the training, by artifact path."""
    from millrace.models.families.objective import objective_of

    metric_name = objective_of(trained.details.encoding).metric
    curves = partial(learning_curves, trained.history, metric_name, trained.prepared.job.unit)
    return {"plots/learning_curves.png": curves}


def draw_export(
    export: "GraphExport", candidates: Sequence[GraphCandidate], chosen: GraphCandidate
) -> dict[str, Draw]:
    """Return what draws the pictures of the export, by artifact path."""
    from millrace.models.families.objective import objective_of

    encoding = export.encoding
    answers, target = export.answers(chosen), export.measured_on.target
    figures: dict[str, Draw] = {}
    if labels := encoding.labels:
        matrix = partial(confusion_matrix, answers.argmax(axis=1), target, labels)
        figures["plots/confusion_matrix.png"] = matrix
    else:
        figure = partial(predicted_against_true, answers[:, 0], target)
        figures["plots/predicted_against_true.png"] = figure
    is_throughput = export.pipeline.export.objective == "throughput"
    front = pareto_front(candidates, GATES)
    points = [
        VariantPoint(
            each.name,
            1e3 / each.speed.rows_per_second if is_throughput else each.speed.p50_ms,
            each.stage.metric,
            each.size_bytes,
            each.name in front,
            each.reason is not None,
            each.name == chosen.name,
        )
        for each in candidates
        if each.stage is not None and each.speed is not None and each.stage.metric is not None
    ]
    if points:
        cost_of = "a row of a full batch" if is_throughput else "p50 of one row"
        metric = objective_of(encoding).metric
        figures["plots/candidates.png"] = partial(pareto_picture, points, metric, cost_of)
    return figures


def _rows(candidates: Sequence[GraphCandidate], certificate: GraphCertificate) -> Iterator[Row]:
    """Yield the rows of the table that is printed."""
    name = certificate.metric_name
    yield f"test {name}", _number(certificate.stages[0].metric)
    if certificate.constant is not None:
        yield "constant answer", f"{name} {certificate.constant:.4f}"
    for each in candidates:
        if each.stage is None or each.speed is None:
            yield each.name, each.reason or ""
            continue
        verdict = "chosen" if certificate.passed else "closest to the limits"
        mark = f"  ← {verdict}" if each.name == certificate.candidate else ""
        yield (
            each.name,
            f"{each.size_bytes / 1024:,.0f} KiB, {each.speed.p50_ms:.3f} ms, "
            f"{each.speed.rows_per_second:,.0f} rows/s, {name} {_number(each.stage.metric)}"
            f"{', ' + each.reason if each.reason else ''}{mark}",
        )
    if (reference := certificate.reference) is not None:
        size = "" if reference.size_bytes is None else f"{reference.size_bytes / 1024:,.0f} KiB, "
        yield f"compared with {reference.name}", f"{size}{name} {_number(reference.metric)}"


def describe_version(certificate: GraphCertificate) -> str:
    """Return the Markdown of a version's page: what it is in a sentence, and its certificate."""
    name, chosen = certificate.metric_name, certificate.chosen
    if chosen is None:
        return certificate_table(certificate)
    _, loss, size = _stage_cells(chosen)
    said = f"{name} {_number(chosen.metric)} on {certificate.test_rows:,} test rows"
    facts = ", ".join(fact for fact in (chosen.name, size, loss and f"loss {loss}") if fact)
    return f"{said}: {facts}.\n\n{certificate_table(certificate)}"


def certificate_table(certificate: GraphCertificate) -> str:
    """Return the stages of a certificate and its reference version as a Markdown table."""
    rows = [
        (
            stage.name + (" (chosen)" if stage.name == certificate.candidate else ""),
            f"{stage.golden_difference:.2e}",
            *_stage_cells(stage),
        )
        for stage in certificate.stages
    ]
    if (reference := certificate.reference) is not None:
        # The difference from another model's answers has no meaning.
        rows.append((f"compared with {reference.name}", "", *_stage_cells(reference)))
    metric = f"{certificate.metric_name} on {certificate.test_rows:,} test rows"
    text = table(("stage", "largest golden difference", metric, "loss", "size"), rows)
    if not certificate.batch_sizes:
        return text
    sizes = ", ".join(map(str, certificate.batch_sizes))
    return f"{text}\n\n{certificate.golden_rows} golden rows in requests of {sizes}."


def _stage_cells(stage: GraphStage) -> tuple[str, str, str]:
    return (
        _number(stage.metric),
        "" if stage.metric_loss is None else f"{stage.metric_loss:+.2%}",
        "" if stage.size_bytes is None else f"{stage.size_bytes / 1024:,.0f} KiB",
    )


def candidates_table(candidates: Sequence[GraphCandidate], certificate: GraphCertificate) -> str:
    """Return every variant as a Markdown table; variants on the Pareto front have a star."""
    head = (
        *("candidate", "size", "p50", "p99", "rows/s", "memory"),
        *(certificate.metric_name, "95% interval", "worst class", "loss", "verdict"),
    )
    front = pareto_front(candidates, GATES)
    rows = [candidate_row(each, certificate, each.name in front) for each in candidates]
    measured = f"Measured on {certificate.machine}." if certificate.machine else ""
    star = "★ no other variant is better in metric, p50, rows/s and size at once."
    searches = [
        f"{each.name}:\n" + "\n".join(f"- {note}" for note in each.notes)
        for each in candidates
        if each.notes
    ]
    ties = dict.fromkeys(c.stage.ties for c in candidates if c.stage and c.stage.ties)
    tied = [f"With TensorRT: {each}." for each in ties]
    notes = " ".join(filter(None, (measured, *tied, star)))
    return "\n\n".join((table(head, rows), notes, *searches))


def candidate_row(
    candidate: GraphCandidate, certificate: GraphCertificate, in_front: bool = False
) -> tuple[str, ...]:
    """Return a candidate's measurements and verdict as the cells of a table row."""
    stage, speed = candidate.stage, candidate.speed
    if stage is None or speed is None:
        return (candidate.name, *[""] * 9, candidate.reason or "")
    passed = "passed" if candidate.is_served else "passed; an engine, not served"
    verdict = "chosen" if candidate.name == certificate.candidate else passed
    ends = (stage.metric_low, stage.metric_high)
    return (
        f"{candidate.name}{' ★' if in_front else ''}",
        f"{candidate.size_bytes / 1024:,.0f} KiB",
        f"{speed.p50_ms:.3f} ms",
        f"{speed.p99_ms:.3f} ms",
        f"{speed.rows_per_second:,.0f}",
        f"{speed.peak_memory_bytes / 2**20:,.0f} MiB",
        _number(stage.metric),
        "" if None in ends else f"{stage.metric_low:.4f} to {stage.metric_high:.4f}",
        f"{stage.worst_class}: {_number(stage.worst_metric)}" if stage.worst_class else "",
        "" if stage.metric_loss is None else f"{stage.metric_loss:.2%}",
        candidate.reason or verdict,
    )


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"
