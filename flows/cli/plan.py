"""`millrace plan`: what a pipeline needs, takes and costs, as training, online and in batch."""

import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from millrace.flows import console
from millrace.flows.cli.command_setup import (
    AsJson,
    Overrides,
    PipelineFile,
    load_settings,
    report,
)
from millrace.models.common.slow_step import report_while

if TYPE_CHECKING:
    from millrace.models.planner.sheet import Sheet


def plan(
    file: PipelineFile,
    set_: Overrides = None,
    hardware: Annotated[
        str,
        typer.Option(
            metavar="NAMES", help="Machines to plan for: h100x8,l4,this-machine; see the docs."
        ),
    ] = "this-machine",
    explain: Annotated[
        bool, typer.Option("--explain", help="Print every number with its formula and source.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Plan memory, speed and cost of a pipeline, before anything is trained or rented."""
    from millrace.flows import tool_variables
    from millrace.models.config.pipeline_file import load_pipeline
    from millrace.models.planner.catalogue import old_prices

    pipeline = load_pipeline(file, set_ or ())
    chosen = tool_variables.apply(load_settings())
    with report_while("planning"):
        from millrace.tasks.plan import plan_pipeline

        sheets = plan_pipeline(pipeline, chosen.installation(), hardware, call_functions=True)
    if as_json:
        console.print_json({"model": pipeline.name, "sheets": sheets})
        return
    for sheet in sheets:
        show_sheet(sheet)
        if explain:
            explain_sheet(sheet)
    for warning in old_prices([sheet.machines for sheet in sheets], datetime.now(UTC).date()):
        report(f"warning: {warning}")


def show_sheet(sheet: "Sheet") -> None:
    """Print a sheet as a table: a row for each aspect, a column for each stage."""
    from millrace.models.planner.sheet import ROWS, STAGES

    title = f"{sheet.model} on {sheet.machines}: {sheet.machines.device.label}"
    rows = [(row, *("\n".join(_lines(sheet, stage, row)) for stage in STAGES)) for row in ROWS]
    console.print_table(title, ("", *STAGES), rows)
    for fault in sheet.faults:
        console.print_hint(fault, label="does not fit")


def _lines(sheet: "Sheet", stage: str, row: str) -> list[str]:
    return [each.words for each in sheet.cells[stage][row]]


def explain_sheet(sheet: "Sheet") -> None:
    """Print every quantity of a sheet with its formula and its source."""
    for stage, cells in sheet.cells.items():
        for row, cell in cells.items():
            for each in cell:
                sys.stdout.write(f"{stage}, {row}: {each.words}\n    = {each.formula}\n")
                for note in (each.source, *each.notes):
                    if note:
                        sys.stdout.write(f"    {note}\n")
