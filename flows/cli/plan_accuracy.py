"""`millrace plan --accuracy`: how far the estimates were off, and what to measure next."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from millrace.flows import console
from millrace.flows.cli.command_setup import load_settings, report
from millrace.flows.cli.plan import write_pictures
from millrace.models.common.slow_step import report_while

if TYPE_CHECKING:
    from millrace.models.planner.measurements import Accuracy


def show_accuracy(files: Sequence[Path], pictures: Path | None, *, as_json: bool) -> None:
    """Print how far earlier estimates were off, by quantity and machine, and what to run next.

    Args:
        files: the pipelines to choose the next run from; none: those of the working folder.
        pictures: folder for a picture; None: no picture.
        as_json: whether to print JSON.
    """
    from millrace.flows import tool_variables
    from millrace.models.planner.measurements import accuracy_of, read_measurements
    from millrace.tasks.next_run import find_next_run
    from millrace.tasks.plan import ledger_of

    installation = tool_variables.apply(load_settings()).installation()
    measurements = read_measurements(ledger_of(installation))
    found = accuracy_of(measurements)
    if pictures is not None and found:
        from millrace.tasks.reports.plan_plots import accuracy_figure

        write_pictures({"accuracy.png": accuracy_figure(measurements)}, pictures)
    with report_while("planning"):
        following = find_next_run(files, installation, measurements)
    if as_json:
        what = None if following is None else {**vars(following), "command": following.command}
        console.print_json({"accuracy": found, "next": what})
        return
    if not found:
        report("nothing is measured yet: `millrace run` and `millrace score` measure")
    _show_tables(found)
    if following is not None:
        report(str(following))


def _show_tables(found: "Sequence[Accuracy]") -> None:
    """Print a table for each machine."""
    from millrace.models.planner.estimates import QUANTITIES

    for machine in dict.fromkeys(each.machine for each in found):
        rows = [
            (
                QUANTITIES[each.quantity].words,
                f"{each.count:,}",
                f"{each.median_error:.1%}",
                "-" if each.held is None else f"{each.held:.0%}",
            )
            for each in found
            if each.machine == machine
        ]
        head = ("quantity", "measured", "median error", "in the interval")
        console.print_table(f"accuracy of the estimates, {machine}", head, rows)
