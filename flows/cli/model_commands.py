"""The commands that look at registered and served models."""

from typing import Annotated

import typer

from millrace.flows import console
from millrace.flows.cli.command_setup import AsJson, load_settings, prepare
from millrace.models.common.slow_step import report_while


def lineage(
    table: Annotated[
        str, typer.Argument(metavar="MODEL", help="A model, or a table of predictions.")
    ],
    row: Annotated[str, typer.Option(help="The row's _key.")],
    date: Annotated[
        str | None, typer.Option(help="Date of one partition, YYYY-MM-DD; all if left out.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Trace a scored row, or an online answer: file or request, version, run, dataset, release."""
    from millrace.flows.score_dates import parse_date

    if date is not None:
        parse_date(date)
    chosen = prepare()
    from millrace.flows.cli import show
    from millrace.flows.cli.lineage import trace_rows

    rows = trace_rows(chosen.installation(), table, row, date)
    console.print_json(rows) if as_json else show.show_lineage(rows)


def certify(
    model: Annotated[str, typer.Argument(help="A model that Triton serves.")],
    as_json: AsJson = False,
) -> None:
    """Certify the live version on the test split and on its golden rows (or golden prompts)."""
    chosen = prepare()
    with console.reserve_stdout(), report_while("certifying"):
        from millrace.flows.cli import show
        from millrace.tasks.export import certify_live

        found = certify_live(chosen.installation(), model)
    console.print_json(found) if as_json else show.show_certified(found)
    if found.faults:
        raise typer.Exit(1)


def history(
    model: Annotated[str, typer.Argument(help="A registered model.")],
    limit: Annotated[int, typer.Option(min=1, help="Number of newest releases to print.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Print the releases of a model: what went live or was refused, when, why, and who asked."""
    from millrace.flows.cli import show
    from millrace.serving.release import live

    releases = live.history(load_settings().installation(), model, limit)
    console.print_json(releases) if as_json else show.show_history(model, releases)
