"""The commands that start, stop and show the services of this machine."""

from typing import Annotated

import typer

from millrace.flows import console
from millrace.flows.cli.command_setup import AsJson, load_settings, report


def up(
    foreground: Annotated[bool, typer.Option("--foreground", help="Stay until Ctrl-C.")] = False,
    as_json: AsJson = False,
) -> None:
    """Start MLflow, Prefect, Triton and the scheduled deployments on this machine."""
    from millrace.flows.cli import show
    from millrace.flows.services import control

    found = control.up(load_settings(), detach=not foreground, report=report)
    console.print_json(found) if as_json else show.show_status(found)
    for line in show.describe_status(found):
        report(line)


def down(as_json: AsJson = False) -> None:
    """Stop everything that `up` started."""
    from millrace.flows.services import control

    result = control.down(load_settings(), report=report)
    if as_json:
        console.print_json(result)
    else:
        report("stopped" if result.was_running else "nothing was running")


def status(
    watch: Annotated[
        bool, typer.Option("--watch", help="Show what Triton does now, until Ctrl-C.")
    ] = False,
    every: Annotated[
        float, typer.Option(min=0.5, help="Seconds between two looks of --watch.")
    ] = 2.0,
    as_json: AsJson = False,
) -> None:
    """Show what runs, and which versions are live."""
    if watch:
        from millrace.flows.cli.watch import watch_load

        watch_load(load_settings().installation(), every, as_json=as_json)
        return
    from millrace.flows.cli import show
    from millrace.flows.services import control
    from millrace.serving.release import live
    from millrace.tasks.retention.disk_use import measure_disk

    chosen = load_settings()
    with console.reserve_stdout():
        found = control.status(chosen, live_versions=live.live_versions)
        served = live.served_models(chosen.installation(), found.live_versions)
        disk = measure_disk(chosen.installation())
    if as_json:
        console.print_json({**console.to_json_value(found), "served": served, "disk": disk})
        return
    show.show_status(found)
    for line in show.describe_status(found):
        console.print_hint(line, label="note")
    show.show_served(served)
    show.show_disk(disk)
