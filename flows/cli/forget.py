"""`millrace forget`: erases the rows of some keys."""

import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from millrace.flows import console
from millrace.flows.cli.command_setup import AsJson, load_settings, report
from millrace.models.common.errors import MAX_NAMED, InputError, MillraceError
from millrace.models.common.slow_step import report_while

if TYPE_CHECKING:
    from millrace.models.common.installation import Installation
    from millrace.tasks.retention.forget import Outcome

REPORT_SECONDS, LOOK_SECONDS = 5.0, 0.5
SOURCE_HINT = (
    "erase the rows from the source and from the inputs of batch jobs too; of the source, later "
    "runs leave them out, until --allow-again"
)
ALLOWED_HINT = (
    "files of the source that change are read with these keys; to read all files: millrace run "
    "FILE --set dataset.mode=full"
)


def forget(
    model: Annotated[str, typer.Argument(help="The model, which has the name of its dataset.")],
    key: Annotated[
        list[str] | None, typer.Option("--key", help="A row's _key; may be repeated.")
    ] = None,
    keys_from: Annotated[
        Path | None, typer.Option("--keys-from", help="A text file with one _key per line.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show where the rows are; erase nothing.")
    ] = False,
    allow_again: Annotated[
        bool,
        typer.Option(
            "--allow-again",
            help="Erase nothing; let later runs read rows with these keys again.",
        ),
    ] = False,
    key_columns: Annotated[
        list[str] | None,
        typer.Option(
            "--key-column",
            help="A column of dataset.key, in order; only needed for a model that has neither a "
            "snapshot nor a pipeline file in the home.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Erase rows by key: from snapshots, quarantine, predictions and dead letters."""
    keys = frozenset([*(key or ()), *_read_keys(keys_from)])
    if not keys:
        raise InputError(
            "no key says which rows to erase",
            valid="--key KEY, once or several times, or --keys-from FILE",
            hint="the column _key of the predictions has the keys",
        )
    installation = load_settings().installation()
    if allow_again:
        _allow_again(installation, model, keys, dry_run=dry_run, as_json=as_json)
        return
    console.set_up_logging()
    with console.reserve_stdout(), report_while("searching for the rows"):
        from millrace.tasks.retention.forget import find_rows
        from millrace.tasks.retention.forget import forget as erase

        declared = key_columns or _declared_key(installation, model)
        if dry_run:
            found = find_rows(installation, model, keys, declared)
        else:
            found = erase(installation, model, keys, Waiting().wait, declared)
    if as_json:
        console.print_json({"dry_run": dry_run, "keys": len(keys), **vars(found)})
    else:
        _show(installation, model, found, dry_run=dry_run)


def _allow_again(
    installation: "Installation",
    model: str,
    keys: frozenset[str],
    *,
    dry_run: bool,
    as_json: bool,
) -> None:
    from millrace.tasks.retention.forget import allow_again

    allowed = allow_again(installation, model, keys, Waiting().wait, dry_run=dry_run)
    missing = sorted(keys - allowed)
    if as_json:
        console.print_json({"dry_run": dry_run, "allowed": len(allowed), "missing": missing})
        return
    report(f"keys that later runs {'would ' if dry_run else ''}read again: {len(allowed):,}")
    if missing:
        report(f"keys that were not forgotten: {_shorten(missing)}")
    if dry_run:
        report("nothing was changed; leave out --dry-run to allow the keys")
    elif allowed:
        report(f"next: {ALLOWED_HINT}")


def _show(installation: "Installation", model: str, found: "Outcome", *, dry_run: bool) -> None:
    from millrace.tasks.retention.forget import describe_key

    titles = ("rows to erase", "in files") if dry_run else ("erased rows", "from files")
    rows = [(each.table, each.rows, each.files, each.uri) for each in found.tables]
    console.print_table(model, ("table", *titles, "at"), rows)
    for why in found.failed:
        report(f"not known: {why}")
    if found.forgotten_before:
        report(f"keys that were forgotten before: {_shorten(found.forgotten_before)}")
    if unknown := sorted({*found.missing} - {*found.forgotten_before}):
        report(f"keys without a row: {_shorten(unknown)}")
        if key := describe_key(installation, model):
            report(f"a key of this dataset is {key}")
    if dry_run:
        report("nothing was erased; leave out --dry-run to erase the rows")
    elif any(each.files for each in found.tables):
        report(f"next: {SOURCE_HINT}")
    else:
        report(f"nothing was erased{'; check the keys' if unknown else ''}")


class Waiting:
    """Waits for jobs that need the rows, and says so every few seconds."""

    def __init__(self) -> None:
        self._next = 0.0

    def wait(self, what: str) -> None:
        """Wait for a moment."""
        if time.monotonic() >= self._next:
            report(f"waiting for {what}; Ctrl-C is safe, a second command goes on")
            self._next = time.monotonic() + REPORT_SECONDS
        time.sleep(LOOK_SECONDS)


def _read_keys(file: Path | None) -> list[str]:
    """Return the lines of a file, as they are: only a line feed ends one."""
    if file is None:
        return []
    try:
        lines = file.read_bytes().decode("utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            "the file of keys cannot be read",
            seen=error,
            valid="a text file in UTF-8, one _key per line",
            hint="check its path and that you may read it; a spreadsheet saves it as `CSV UTF-8`",
        ) from error
    return [key for key in (line.rstrip("\r") for line in lines) if key]


def _declared_key(installation: "Installation", model: str) -> tuple[str, ...] | None:
    """Return the key of the model's dataset by a pipeline file of the home; None without one."""
    from millrace.models.config.pipeline_file import load_pipeline

    for file in installation.pipeline_files:
        with suppress(MillraceError):  # another model's file may be wrong
            pipeline = load_pipeline(file)
            if pipeline.name == model:
                return tuple(pipeline.dataset.key)
    return None


def _shorten(keys: Sequence[str]) -> str:
    more = f" and {len(keys) - MAX_NAMED} more" if len(keys) > MAX_NAMED else ""
    # A space at an end of a key is seen in quotes only.
    shown = [key if key == key.strip() else repr(key) for key in keys[:MAX_NAMED]]
    return ", ".join(shown) + more
