"""`millrace plan`: what a pipeline needs, takes and costs, as training, online and in batch."""

import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from millrace.flows import console
from millrace.flows.cli.command_setup import AsJson, Overrides, load_settings, report
from millrace.models.common.errors import InputError
from millrace.models.common.slow_step import report_while

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from millrace.models.config.pipeline import Pipeline
    from millrace.models.planner.compare import Verdict
    from millrace.models.planner.sheet import Sheet

NOTED = "*"
"""Mark of a number that is extrapolated."""


def plan(
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="FILE...", help="The pipeline file; several share devices."),
    ] = None,
    set_: Overrides = None,
    hardware: Annotated[
        str,
        typer.Option(
            metavar="NAMES", help="Machines to plan for: h100x8,l4,this-machine; see the docs."
        ),
    ] = "this-machine",
    load: Annotated[
        float | None,
        typer.Option(help="Rows or tokens per second that are asked for online, on average."),
    ] = None,
    budget: Annotated[
        float | None, typer.Option(help="Most dollars a month for a service that always runs.")
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Print every number with its formula and source.")
    ] = False,
    accuracy: Annotated[
        bool,
        typer.Option(
            "--accuracy", help="Show how far earlier estimates were off, and what to run next."
        ),
    ] = False,
    pictures: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Also draw pictures into this folder."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Plan memory, speed and cost of a pipeline, before anything is trained or rented."""
    if accuracy:
        from millrace.flows.cli.plan_accuracy import show_accuracy

        show_accuracy(files or (), pictures, as_json=as_json)
        return
    console.set_up_logging()
    given = _require_files(files, load, budget)
    if len(given) > 1:
        _require_of_packing(budget, explain=explain)
    pipelines, plans = _plan_files(given, set_, hardware, load, budget)
    if pictures is not None:
        for each in plans:
            _draw_plan(each, pictures / each[0].sheet.model if len(plans) > 1 else pictures)
    if len(pipelines) > 1:
        show_packing(pipelines, plans, load, as_json=as_json)
    elif as_json:
        console.print_json(_as_json(pipelines[0], plans[0]))
    else:
        _show_plan(plans[0], budget, explain=explain)


def _plan_files(
    files: "Sequence[Path]",
    overrides: list[str] | None,
    hardware: str,
    load: float | None,
    budget: float | None,
) -> "tuple[list[Pipeline], list[Sequence[Verdict]]]":
    """Return the pipelines of the files, and the plan of each on every kind of machine."""
    from millrace.flows import tool_variables
    from millrace.models.config.pipeline_file import load_pipeline

    pipelines = [load_pipeline(file, overrides or ()) for file in files]
    installation = tool_variables.apply(load_settings()).installation()
    with report_while("planning"):
        from millrace.tasks.plan import plan_pipeline

        plans: list[Sequence[Verdict]] = [
            plan_pipeline(
                each,
                installation,
                hardware,
                load_per_second=load,
                budget=budget,
                call_functions=True,
            )
            for each in pipelines
        ]
    return pipelines, plans


def _require_files(
    files: list[Path] | None, load: float | None, budget: float | None
) -> list[Path]:
    """Return the pipeline files, once the options are checked.

    Raises:
        InputError: there is no file, or an option is not above 0.
    """
    for name, value in (("--load", load), ("--budget", budget)):
        if value is not None and not 0 < value < float("inf"):
            raise InputError(f"{name} must be above 0", seen=str(value), valid="above 0")
    if not files:
        raise InputError(
            "millrace plan needs a pipeline file",
            seen="none",
            valid="millrace plan FILE, or millrace plan --accuracy",
        )
    return files


def _require_of_packing(budget: float | None, *, explain: bool) -> None:
    """Refuse options that several files cannot have.

    Raises:
        InputError: such an option is given.
    """
    given = {"--budget": budget is not None, "--explain": explain}
    if found := [name for name, is_given in given.items() if is_given]:
        raise InputError(
            f"several pipeline files cannot have {' and '.join(found)}",
            seen=", ".join(found),
            valid="--hardware, --load, --pictures, --json, --set",
            hint="plan each file by itself",
        )


def _draw_plan(verdicts: "Sequence[Verdict]", folder: Path) -> None:
    from millrace.tasks.reports.plan_plots import pictures_of

    write_pictures(pictures_of(verdicts[0].sheet.work, verdicts), folder)


def write_pictures(figures: "Mapping[str, Figure]", folder: Path) -> None:
    """Write figures as PNG files, and say where.

    Raises:
        InputError: the folder cannot be written.
    """
    from millrace.models.common.pictures import png_of

    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, figure in figures.items():
            (folder / name).write_bytes(png_of(figure))
    except OSError as error:
        raise InputError(
            f"the pictures cannot be written: {folder}",
            seen=str(error),
            hint="name a folder that can be written in --pictures",
        ) from error
    report(f"pictures: {', '.join(str(folder / name) for name in figures)}")


def _show_plan(verdicts: "Sequence[Verdict]", budget: float | None, *, explain: bool) -> None:
    for verdict in verdicts:
        show_sheet(verdict.sheet)
        for hint in verdict.sheet.hints:
            console.print_hint(hint, label="note")
        for broken in verdict.broken:
            console.print_hint(str(broken), label="too much")
        for each in verdict.doubtful:
            console.print_hint(f"at the end of the interval, {each}", label="perhaps too much")
        for bound in verdict.unchecked:
            console.print_hint(f"{bound} is not checked: the size of the job is not known", "note")
        if explain:
            explain_sheet(verdict.sheet)
    _report_choice(verdicts, budget)


def show_packing(
    pipelines: "Sequence[Pipeline]",
    plans: "Sequence[Sequence[Verdict]]",
    load: float | None,
    *,
    as_json: bool,
) -> None:
    """Print how several models share the fewest devices, for each kind of device."""
    from millrace.models.planner.quantity import format_value
    from millrace.tasks.plan import pack_pipelines

    packings, refused = [], []
    for each in zip(*plans, strict=True):
        try:
            packings.append(pack_pipelines(each, pipelines, load))
        except InputError as error:
            refused.append((each[0].sheet.machines, error))
    if not packings:
        raise refused[0][1]
    for machines, why in refused:
        report(f"not on {machines}: {str(why).splitlines()[0]}")
    if as_json:
        console.print_json(
            [{**vars(each), "saved_per_month": each.saved_per_month} for each in packings]
        )
        return
    for packing in packings:
        rows = [
            (
                f"{number}",
                "\n".join(each.name for each in device.demands),
                f"{format_value(device.used_memory, 'bytes')} of "
                f"{format_value(device.memory, 'bytes')}",
                f"{device.used_load:.0%}",
            )
            for number, device in enumerate(packing.devices, 1)
        ]
        title = f"{packing.models} models on {packing.machines.device.label}"
        console.print_table(title, ("device", "jobs", "memory", "time"), rows)
        saved = packing.saved_per_month
        words = f"{len(packing.devices)} instead of {packing.apart} devices"
        report(f"{words}: ${saved:,.0f} a month less" if saved else words)
    if load is None:
        report("without --load only memory counts, and the time of nightly jobs")


def _as_json(pipeline: "Pipeline", verdicts: "Sequence[Verdict]") -> dict[str, object]:
    from millrace.models.planner.compare import choose_machines
    from millrace.models.planner.sheet import STAGES

    best = choose_machines(verdicts)
    return {
        "model": pipeline.name,
        "sheets": [each.sheet for each in verdicts],
        "verdicts": [
            {
                "machines": str(each.sheet.machines),
                "feasible": each.is_feasible,
                "monthly": each.monthly,
                "broken": each.broken,
                "doubtful": each.doubtful,
                "unchecked": each.unchecked,
            }
            for each in verdicts
        ],
        "cheapest": None if best is None else str(best.sheet.machines),
        "cheapest_by_job": {
            stage: None if found is None else str(found.sheet.machines)
            for stage in STAGES
            for found in [choose_machines(verdicts, stage)]
        },
    }


def show_sheet(sheet: "Sheet") -> None:
    """Print a sheet as a table: a row for each aspect, a column for each stage."""
    from millrace.models.planner.quantity import ROWS
    from millrace.models.planner.sheet import STAGES

    title = f"{sheet.model} on {sheet.machines}: {sheet.machines.device.label}"
    rows = [(row, *("\n".join(_lines(sheet, stage, row)) for stage in STAGES)) for row in ROWS]
    console.print_table(title, ("", *STAGES), rows)
    if any(
        each.notes for cells in sheet.cells.values() for cell in cells.values() for each in cell
    ):
        report(f"{NOTED} extrapolated: larger than what was measured; --explain says how far")


def _lines(sheet: "Sheet", stage: str, row: str) -> list[str]:
    found = sheet.cells[stage][row]
    return [f"{each.words} {NOTED}" if each.notes else each.words for each in found]


def explain_sheet(sheet: "Sheet") -> None:
    """Print every quantity of a sheet with its formula and its source."""
    for stage, cells in sheet.cells.items():
        for row, cell in cells.items():
            for each in cell:
                sys.stdout.write(f"{stage}, {row}: {each.words}\n    = {each.formula}\n")
                for note in (each.source, *each.notes):
                    if note:
                        sys.stdout.write(f"    {note}\n")


def _cheapest_by_stage(verdicts: "Sequence[Verdict]") -> str:
    """Return the cheapest machines for each stage by itself, in words."""
    from millrace.models.planner.compare import choose_machines
    from millrace.models.planner.sheet import STAGES

    found = {stage: choose_machines(verdicts, stage) for stage in STAGES}
    return ", ".join(
        f"{stage} {'none' if best is None else best.sheet.machines}"
        for stage, best in found.items()
    )


def _report_choice(verdicts: "Sequence[Verdict]", budget: float | None) -> None:
    """Say which machines are the cheapest that keep to the bounds, and which prices are old."""
    from millrace.models.planner.catalogue import old_prices
    from millrace.models.planner.compare import choose_machines, nearest_machines

    best = choose_machines(verdicts)
    if best is None:
        nearest = nearest_machines(verdicts)
        why = "; ".join(map(str, nearest.broken))
        report(f"none of the machines is enough; the nearest is {nearest.sheet.machines}: {why}")
    if len(verdicts) > 1:
        report(f"cheapest for each job: {_cheapest_by_stage(verdicts)}")
    free = [str(v.sheet.machines) for v in verdicts if v.is_feasible and v.monthly is None]
    if best is not None and best.monthly is not None and free:
        report(f"enough too, at a price that is not known: {', '.join(free)}")
    if best is not None and len(verdicts) > 1:
        cost = "without a known price" if best.monthly is None else f"${best.monthly:,.0f} a month"
        report(f"cheapest that is enough: {best.sheet.machines}, {cost}")
    unpriced = [str(each.sheet.machines) for each in verdicts if each.monthly is None]
    if budget is not None and unpriced:
        report(
            f"warning: the budget is not checked for {', '.join(unpriced)}, whose price is not "
            "known (batch.price_per_hour, or a price in hardware.yaml)"
        )
    for warning in old_prices([each.sheet.machines for each in verdicts], datetime.now(UTC).date()):
        report(f"warning: {warning}")
