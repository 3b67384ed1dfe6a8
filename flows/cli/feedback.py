"""`millrace feedback`: labels that came back, beside what was predicted."""

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
    from millrace.tasks.feedback import Feedback

EVENT_SECONDS = 10.0


def feedback(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A registered model.")],
    labels: Annotated[
        str,
        typer.Option(
            metavar="FILE", help="The labels: a file, a glob, a URI or a Delta table, with keys."
        ),
    ],
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
    """Join labels to a model's predictions by key: live accuracy by day, and a fall of it."""
    chosen = prepare()
    with console.reserve_stdout(), report_while("joining the labels"):
        from millrace.tasks import feedback as task

        found = task.read_feedback(
            chosen.installation(), model, labels, label=label, key=key or (), date=date
        )
    if pictures is not None:
        from millrace.tasks.reports.feedback_plots import feedback_pictures

        write_pictures(feedback_pictures(found), pictures)
    if found.falls:
        _tell(found, chosen, retrain=retrain)
    if as_json:
        console.print_json(found)
        return
    rows = [
        (
            each.date,
            str(each.version),
            each.source,
            f"{each.labels:,}",
            f"{each.value:.4g}",
            "" if each.low is None else f"{each.low:.4f} to {each.high:.4f}",
            _certified(found.certified.get(each.version)),
        )
        for each in found.days
    ]
    metric = found.days[0].metric if found.days else "accuracy"
    head = ("date", "version", "of", "labels", metric, "95% interval", "certified")
    console.print_table(f"{found.model}, live", head, rows)
    unmatched = found.labels - found.matched - found.unreadable
    console.print_line(f"labels: {found.labels:,}, {unmatched:,} of them without a prediction")
    if found.unreadable:
        console.print_line(f"unreadable labels: {found.unreadable:,}")
    if found.calibration is not None:
        console.print_line(f"calibration error: {found.calibration:.4f}")
    for version, fall in found.falls.items():
        console.print_line(f"warning: version {version}: {task.describe_fall(fall)}")


def _tell(found: "Feedback", settings: "Settings", *, retrain: bool) -> None:
    """Send the falls to the Prefect of `up`, for automations, and start the training."""
    from millrace.flows import tool_variables
    from millrace.flows.run_state import is_supervisor_alive
    from millrace.tasks import feedback as task
    from millrace.tasks.alerts import FELL, Event, post

    falls = {str(version): asdict(fall) for version, fall in found.falls.items()}
    said = [f"version {n}: {task.describe_fall(fall)}" for n, fall in found.falls.items()]
    event = Event(FELL, found.model, "; ".join(said), falls)
    if not is_supervisor_alive(settings.run):
        post(event)
        if retrain:
            report("nothing is trained: `millrace up` does not run")
        return
    tool_variables.apply(settings)
    from prefect.events.worker import EventsWorker

    from millrace.tasks.alerts import emit

    emit(event)
    EventsWorker.drain_all(timeout=EVENT_SECONDS)
    if retrain:
        from millrace.flows.deployments import change_schedules

        run = change_schedules.run_now(settings, f"train-{found.model}")
        report(f"started {run}, as the accuracy fell")


def _certified(share: float | None) -> str:
    return "" if share is None else f"{share:.4f}"
