"""`millrace forget`: erases the rows of some keys."""

import time
from pathlib import Path
from typing import Annotated

import typer

from millrace.flows import console, settings
from millrace.flows.cli.command_setup import AsJson, report
from millrace.models.common.errors import InputError

REPORT_SECONDS, LOOK_SECONDS = 5.0, 0.5
SOURCE_HINT = (
    "erase the rows from the source and from the inputs of batch jobs too; a later reading of the "
    "same files would bring them back"
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
    installation = settings.load().installation()
    from millrace.tasks.retention.forget import find_rows
    from millrace.tasks.retention.forget import forget as erase

    if dry_run:
        found = find_rows(installation, model, keys)
    else:
        found = erase(installation, model, keys, Waiting().wait)
    if as_json:
        console.print_json({"dry_run": dry_run, "keys": len(keys), "tables": found})
        return
    title = "rows to erase" if dry_run else "erased rows"
    rows = [(each.table, each.rows, each.uri) for each in found]
    console.print_table(model, ("table", title, "at"), rows)
    report(
        "nothing was erased; leave out --dry-run to erase the rows"
        if dry_run
        else f"next: {SOURCE_HINT}"
    )


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
    if file is None:
        return []
    try:
        return [line for line in file.read_text().splitlines() if line]
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            "the file of keys cannot be read", seen=error, valid="a text file, one _key per line"
        ) from error
