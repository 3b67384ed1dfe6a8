"""`millrace clean`: removes what the retention of pipeline files no longer keeps."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.filesize import decimal

from millrace.flows import console
from millrace.flows.cli.command_setup import AsJson, prepare, report
from millrace.models.common.counted import counted
from millrace.models.common.errors import InputError
from millrace.models.common.slow_step import report_while

if TYPE_CHECKING:
    from millrace.flows.settings import Settings
    from millrace.models.common.installation import Installation
    from millrace.tasks.retention.cleaned import Cleaned


def clean(
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="FILES", help="Pipeline files; those of the home if left out."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be removed; remove nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Remove old versions, snapshots, predictions, logs and leftovers, as `retention` says."""
    from millrace.models.config.pipeline_file import load_pipeline

    pipelines = [load_pipeline(file) for file in files or ()]
    chosen = prepare()
    installation = with_scheduled(chosen)
    if not pipelines and not installation.pipeline_files:
        raise InputError(
            "there is no pipeline file whose retention says what to remove",
            seen=f"MILLRACE_PIPELINES={','.join(installation.pipelines)}",
            valid="at least one pipeline file",
            hint="name it: millrace clean FILE",
        )
    found = []
    with console.reserve_stdout(), report_while("looking for what can be removed"):
        from millrace.tasks.retention.clean import PIPELINE_FILES
        from millrace.tasks.retention.clean import clean as remove

        for each in remove(pipelines, installation, dry_run=dry_run):
            for reason in each.skipped:
                what = "not read" if each.kind == PIPELINE_FILES else "not removed"
                console.log.warning("%s: %s: %s", each.subject, what, reason)
            found.append(each)
    if as_json:
        console.print_json({"dry_run": dry_run, "cleaned": found})
    else:
        _show(found, dry_run=dry_run)
    if any(each.skipped for each in found):
        raise typer.Exit(1)


def with_scheduled(chosen: "Settings") -> "Installation":
    """Return the installation with the pipeline files that a running `up` schedules.

    Those of MILLRACE_PIPELINES are taken if it is set here, and those of `millrace schedule add`
    always.
    """
    from millrace.flows.deployments import schedule_state
    from millrace.flows.deployments.own_schedules import read_own
    from millrace.flows.run_state import is_supervisor_alive

    installation = chosen.installation()
    patterns = tuple(installation.pipelines)
    if "pipelines" not in chosen.model_fields_set and is_supervisor_alive(chosen.run):
        patterns = schedule_state.read_patterns(chosen.run, patterns)
    return replace(installation, pipelines=read_own(chosen.home).patterns(patterns))


def _show(found: Sequence["Cleaned"], *, dry_run: bool) -> None:
    rows = [
        (
            each.model or "home",
            each.kind,
            # A list of what will be gone has to be whole.
            ", ".join(each.removed) if dry_run else _shorten(each.removed),
            _shorten_kept(each),
            _size(each),
        )
        for each in found
        if each.removed or each.kept or each.files
    ]
    title = "would be removed" if dry_run else "removed"
    console.print_table("retention", ("of", "kind", title, "kept", "disk"), rows)
    report(_closing_line(found, dry_run=dry_run))


def _closing_line(found: Sequence["Cleaned"], *, dry_run: bool) -> str:
    """Return how much was removed, and how much disk became free as far as the stores say."""
    if dry_run:
        return "nothing was removed; leave out --dry-run to remove it"
    counts = Counter[str]()
    for each in found:
        counts[each.kind] += len(each.removed)
    removed = ", ".join(f"{kind} {number:,}" for kind, number in counts.items() if number)
    size = sum(each.size for each in found)
    least = "at least " if any(each.removed and not each.files for each in found) else ""
    freed = f"{least}{decimal(size)} of disk became free" if size else ""
    facts = "; ".join(filter(None, (removed, freed)))
    return f"removed: {facts}" if facts else "nothing was removed"


def _size(each: "Cleaned") -> str:
    return f"{decimal(each.size)} in {counted(each.files, 'file')}" if each.files else ""


def _shorten(names: Sequence[str], most: int = 5) -> str:
    shown = ", ".join(names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown


def _shorten_kept(each: "Cleaned") -> str:
    return _shorten([f"{name} ({why})" for name, why in each.kept.items()])
