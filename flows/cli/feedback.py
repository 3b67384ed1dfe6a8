"""`millrace feedback`: labels that came back, beside what was predicted."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from millrace.flows import console
from millrace.flows.cli.command_setup import AsJson, prepare, report
from millrace.flows.cli.plan import write_pictures
from millrace.models.common.slow_step import report_while

if TYPE_CHECKING:
    from millrace.flows.settings import Settings
    from millrace.serving.batch.monitoring.drift import Drift
    from millrace.tasks.alerts import Event
    from millrace.tasks.feedback import Feedback
    from millrace.tasks.feedback_history import LiveDay
    from millrace.tasks.online_drift import OnlineDrift

EVENT_SECONDS = 10.0
MOST_DAYS = 40
"""Dates and versions that are printed, the newest."""
MOST_COLUMNS = 8
"""Columns of the requests whose drift is printed, the largest."""


def feedback(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A registered model.")],
    labels: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="The labels: a file, a glob, a URI or a Delta table, with keys. Without it, what "
            "earlier labels said.",
        ),
    ] = None,
    label: Annotated[
        str | None, typer.Option(help="The column of the labels; the dataset's target if left out.")
    ] = None,
    key: Annotated[
        list[str] | None, typer.Option(help="A key column; repeatable. The pipeline's if left out.")
    ] = None,
    date: Annotated[
        str | None, typer.Option(metavar="YYYY-MM-DD", help="Only predictions of this date.")
    ] = None,
    retrain: Annotated[
        bool,
        typer.Option("--retrain", help="If the accuracy fell, start the training that `up` runs."),
    ] = False,
    pictures: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Also draw pictures into this folder."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Join labels to predictions by key: live accuracy by day, its fall, and drift of requests."""
    from millrace.flows.score_dates import parse_date

    if date is not None:
        parse_date(date)
    chosen = prepare()
    with console.reserve_stdout(), report_while("joining the labels"):
        from millrace.tasks import feedback as task

        found = task.read_feedback(
            chosen.installation(), model, labels, label=label, key=key or (), date=date
        )
    if pictures is not None:
        from millrace.tasks.reports.feedback_plots import feedback_pictures

        write_pictures(feedback_pictures(found), pictures)
    console.print_json(found) if as_json else _show(found, has_labels=labels is not None)
    if events := list(_events(found)):
        _tell(events, chosen)
    if retrain and found.falls:
        _retrain(model, chosen)


def _show(found: "Feedback", *, has_labels: bool) -> None:
    every = found.days if has_labels else found.history
    days = every[-MOST_DAYS:]
    if days:
        head = ("date", "version", "of", "labels", days[0].metric, "95% interval", "certified")
        console.print_table(f"{found.model}, live", head, [_day(each, found) for each in days])
    if len(every) > len(days):
        console.print_line(f"rows of earlier dates: {len(every) - len(days):,}; `--json` has all")
    if has_labels:
        unmatched = found.labels - found.matched - found.unreadable
        console.print_line(f"labels: {found.labels:,}, {unmatched:,} of them without a prediction")
    if found.unreadable:
        console.print_line(f"unreadable labels: {found.unreadable:,}")
    if found.calibration is not None:
        console.print_line(f"calibration error: {found.calibration:.4f}")
    for asked in found.drift:
        title = f"requests to version {asked.version} since {asked.since}: {asked.rows:,} rows"
        rows = [
            (each.column, f"{each.psi:.3f}", f"{asked.limit + each.noise:.3f}", _mark(each, asked))
            for each in asked.columns[:MOST_COLUMNS]
        ]
        console.print_table(title, ("column", "PSI", "limit", ""), rows)
    for event in _events(found):
        console.print_line(f"warning: {event.text}")


def _day(day: "LiveDay", found: "Feedback") -> tuple[str, ...]:
    return (
        day.date,
        str(day.version),
        day.source,
        f"{day.labels:,}",
        f"{day.value:.4g}",
        "" if day.low is None else f"{day.low:.4f} to {day.high:.4f}",
        _certified(found.certified.get(day.version)),
    )


def _mark(drift: "Drift", asked: "OnlineDrift") -> str:
    return "drifted" if drift.exceeds(asked.limit) else ""


def _events(found: "Feedback") -> Iterator["Event"]:
    """Return what people should be told: falls of the accuracy, and columns that drifted."""
    from millrace.tasks.alerts import FELL, ONLINE_DRIFT, Event
    from millrace.tasks.feedback import describe_fall

    if found.falls:
        falls = {str(version): asdict(fall) for version, fall in found.falls.items()}
        said = [f"version {n}: {describe_fall(fall)}" for n, fall in found.falls.items()]
        yield Event(FELL, found.model, "; ".join(said), falls)
    for asked in found.drift:
        if asked.over:
            names = ", ".join(f"{each.column} (PSI {each.psi:.2f})" for each in asked.over)
            text = f"requests to version {asked.version} drifted from its training rows: {names}"
            columns = {each.column: each.psi for each in asked.over}
            details = {"model_version": asked.version, "limit": asked.limit, "columns": columns}
            yield Event(ONLINE_DRIFT, found.model, text, details)


def _tell(events: Sequence["Event"], settings: "Settings") -> None:
    """Send events to the Prefect of `up`, for automations, and to the webhook."""
    from millrace.flows import tool_variables
    from millrace.flows.run_state import is_supervisor_alive
    from millrace.tasks.alerts import post

    if not is_supervisor_alive(settings.run):
        for event in events:
            post(event)
        return
    tool_variables.apply(settings)
    from prefect.events.worker import EventsWorker

    from millrace.tasks.alerts import emit

    for event in events:
        emit(event)
    EventsWorker.drain_all(timeout=EVENT_SECONDS)


def _retrain(model: str, settings: "Settings") -> None:
    """Start the training that `up` has on schedule."""
    from millrace.flows.run_state import is_supervisor_alive

    if not is_supervisor_alive(settings.run):
        report("nothing is trained: `millrace up` does not run")
        return
    from millrace.flows.deployments import change_schedules

    run = change_schedules.run_now(settings, f"train-{model}")
    report(f"started {run}, as the accuracy fell")


def _certified(share: float | None) -> str:
    return "" if share is None else f"{share:.4f}"
