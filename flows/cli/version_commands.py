"""`millrace promote`, `rollback` and `delete`: what MLflow's UI does, in a terminal."""

from typing import TYPE_CHECKING, Annotated

import typer

from millrace.flows import console
from millrace.flows.cli.command_setup import AsJson, prepare, report
from millrace.models.common.slow_step import report_while

if TYPE_CHECKING:
    from millrace.flows.settings import Settings
    from millrace.tasks.change_versions import Moved

Model = Annotated[str, typer.Argument(metavar="MODEL", help="A registered model.")]


def compare(
    first: Annotated[
        str,
        typer.Argument(
            metavar="A",
            help="NAME/VERSION, NAME@ALIAS, NAME (the champion), or an MLflow run's ID.",
        ),
    ],
    second: Annotated[
        str | None,
        typer.Argument(metavar="[B]", help="The version that is judged; without it, A is judged."),
    ] = None,
    by: Annotated[
        list[str] | None,
        typer.Option("--by", help="A column by whose values the rows are cut; repeatable."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say whether version B is better than A on the same rows; A alone: than its champion."""
    chosen = prepare()
    with console.reserve_stdout(), report_while("both versions answer the test split"):
        from millrace.tasks import compare_versions as versions

        base, judged = (None, first) if second is None else (first, second)
        found = versions.compare_versions(chosen.installation(), base, judged, by)
    if as_json:
        console.print_json(found)
        return
    console.print_line(found.verdict)
    title = f"{found.second} against {found.first}"
    console.print_table(title, ("what", "value"), versions.describe_comparison(found))
    if found.slices:
        head = ("slice", "rows", found.metric, "difference", "verdict")
        console.print_table("by slice", head, versions.describe_slices(found))
    if len(found.slices) > versions.MOST_SLICES:
        more = len(found.slices) - versions.MOST_SLICES
        console.print_hint(f"{more:,} slices more, all of them with `--json`", label="note")


def promote(
    model: Model,
    version: Annotated[
        int | None,
        typer.Argument(min=1, help="The version's number; the challenger if left out."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Give a version the alias champion, which makes it live; `millrace rollback` takes it back."""
    chosen = prepare()
    with console.reserve_stdout():
        from millrace.tasks.change_versions import promote_version

        moved = promote_version(chosen.installation(), model, version)
    _show(moved, chosen, as_json=as_json)


def rollback(model: Model, as_json: AsJson = False) -> None:
    """Give the alias champion back to the version that was live, or champion, before."""
    chosen = prepare()
    with console.reserve_stdout():
        from millrace.tasks.change_versions import roll_back

        moved = roll_back(chosen.installation(), model)
    _show(moved, chosen, as_json=as_json)


def delete(
    model: Model,
    version: Annotated[int, typer.Argument(min=1, help="The version's number.")],
    as_json: AsJson = False,
) -> None:
    """Delete a version and its files, unless an alias, a server, a job or a file needs it."""
    chosen = prepare()
    with console.reserve_stdout():
        from millrace.flows.cli.clean import with_scheduled
        from millrace.tasks.change_versions import delete_version
        from millrace.tasks.retention.clean import read_texts

        installation = with_scheduled(chosen)
        named = read_texts(installation.pipeline_files)
        deleted = delete_version(installation, model, version, named)
    if as_json:
        console.print_json(deleted)
    else:
        report(f"deleted {deleted.model} version {deleted.version} and its files")


def _show(moved: "Moved", chosen: "Settings", *, as_json: bool) -> None:
    if as_json:
        console.print_json(moved)
        return
    version = f"{moved.model} version {moved.version}"
    if not moved.changed:
        report(f"{version} is the champion already")
    else:
        before = f"; before it was version {moved.before}" if moved.before else ""
        report(f"{version} is the champion{before}")
    if moved.compared:
        report(f"compared with {moved.compared}")
    if moved.live == moved.version:
        return
    if moved.refusal is not None:
        stays = f"; version {moved.live} stays live" if moved.live else ""
        report(f"warning: a release would refuse it{stays}: {moved.refusal}")
        console.print_hint(f"`millrace rollback {moved.model}` takes the alias back")
        return
    from millrace.flows.run_state import is_supervisor_alive

    if is_supervisor_alive(chosen.run):
        console.print_hint("`up` makes it live within a minute; `millrace release` waits for it")
    else:
        console.print_hint("`millrace up` serves it; for a Triton elsewhere run `millrace release`")
