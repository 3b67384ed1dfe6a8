"""`millrace schedule`: what is scheduled, and changes to it while `up` runs."""

from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Annotated
from zoneinfo import ZoneInfo

import typer

from millrace.flows import console
from millrace.flows.cli.command_setup import AsJson, PipelineFile, load_settings, report
from millrace.models.common.errors import MillraceError

if TYPE_CHECKING:
    from millrace.flows.deployments.deployment_specs import DeploymentSpec
    from millrace.flows.settings import Settings

schedule = typer.Typer(
    name="schedule",
    help="Show and change what runs on schedule: training, and nightly scoring.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
Name = Annotated[
    str, typer.Argument(metavar="NAME", help="A deployment such as score-digits, or a pipeline.")
]


@schedule.command("list")
def list_(as_json: AsJson = False) -> None:
    """List what is scheduled, with the next time of each."""
    from millrace.flows import tool_variables
    from millrace.flows.deployments.change_schedules import read_paused, read_wanted

    settings = load_settings()
    wanted = read_wanted(settings)
    specs = [each for each in wanted.specs if "pipeline_file" in each.parameters]
    is_running, paused = _is_running(settings), wanted.paused
    if is_running:
        with suppress(MillraceError):  # what `up` saw last is shown where Prefect does not answer
            paused = read_paused(tool_variables.apply(settings))
    shown = [
        {
            "deployment": each.name,
            "file": each.parameters["pipeline_file"],
            "cron": each.cron,
            "timezone": each.timezone,
            "next": None if each.name in paused else _next_time(each),
            "paused": each.name in paused,
        }
        for each in specs
    ]
    if as_json:
        console.print_json({"up": is_running, "schedules": shown, "faults": wanted.faults})
        return
    rows = [
        (
            str(each["deployment"]),
            f"{each['cron']} {each['timezone']}" if each["cron"] else "only on request",
            "paused" if each["paused"] else str(each["next"] or ""),
            str(each["file"]),
        )
        for each in shown
    ]
    rows = rows or [("none", "", "", "`millrace schedule add FILE`")]
    console.print_table("schedules", ("deployment", "cron", "next", "file"), rows)
    for fault in wanted.faults:
        report(f"not scheduled as it is now: {fault.file}: {fault.reason}")
    if not is_running:
        console.print_hint("nothing runs on schedule before `millrace up`", label="note")


@schedule.command()
def add(file: PipelineFile) -> None:
    """Schedule a pipeline file, beside those of MILLRACE_PIPELINES; the next `up` does too."""
    from millrace.flows.deployments.change_schedules import add_file

    chosen = _settings()
    names = add_file(chosen, file)
    when = "within seconds" if _is_running(chosen) else "by the next `millrace up`"
    report(f"scheduled {when}: {', '.join(names)}")


@schedule.command()
def remove(
    name: Annotated[
        str,
        typer.Argument(metavar="FILE", help="A scheduled pipeline file, or its pipeline's name."),
    ],
) -> None:
    """Schedule a pipeline file no more; `schedule add` takes it back."""
    from millrace.flows.deployments.change_schedules import remove_file

    report(f"no longer scheduled: {remove_file(_settings(), name)}")


@schedule.command()
def pause(name: Name) -> None:
    """Pause the schedules of a pipeline, or one of them; a run that has begun goes on."""
    from millrace.flows.deployments import change_schedules

    names = change_schedules.pause(_settings(), name, paused=True)
    report(f"paused: {', '.join(names)}; `millrace schedule resume {name}` goes on")


@schedule.command()
def resume(name: Name) -> None:
    """Resume what was paused."""
    from millrace.flows.deployments import change_schedules

    names = change_schedules.pause(_settings(), name, paused=False)
    report(f"resumed: {', '.join(names)}")


@schedule.command("run-now")
def run_now(name: Name) -> None:
    """Start a run of a deployment at once, as its schedule would."""
    from millrace.flows.deployments import change_schedules

    run = change_schedules.run_now(_settings(), name)
    report(f"started {run}; its page in Prefect's UI shows it, and `millrace status` the address")


def _settings() -> "Settings":
    """Return the settings, with the variables by which Prefect's client finds its server."""
    from millrace.flows import tool_variables

    return tool_variables.apply(load_settings())


def _is_running(settings: "Settings") -> bool:
    from millrace.flows.run_state import is_supervisor_alive

    return is_supervisor_alive(settings.run)


def _next_time(spec: "DeploymentSpec") -> str | None:
    from cronsim import CronSim

    if spec.cron is None:
        return None
    now = datetime.now(ZoneInfo(spec.timezone))
    return f"{next(CronSim(spec.cron, now)):%Y-%m-%d %H:%M}"
