"""Erases the rows of some keys from everything that Millrace has stored of a model's data."""

from collections.abc import Collection
from dataclasses import dataclass

import deltalake

from millrace.models.common.errors import InputError
from millrace.models.common.installation import Installation
from millrace.models.config.model_kind import all_kinds
from millrace.models.data.erase_bad_rows import by_dead_letter, by_stored_row
from millrace.models.data.erase_rows import Erasure, erase_in_newest, find_files, scrub_files
from millrace.models.data.folder import Folder
from millrace.models.data.forget_rows import Wait, forget_in_snapshots
from millrace.models.data.schema import KEY
from millrace.models.data.snapshots import DATASETS, QUARANTINE, open_snapshot
from millrace.serving.batch.forget_predictions import forget_in_jobs, forget_in_predictions

PREDICTIONS, DEAD_LETTERS = "predictions", "dead_letters"


@dataclass(frozen=True)
class Forgotten:
    """What was erased from one table.

    Attributes:
        table: the kind of table.
        uri: its URI.
        rows: number of rows that the newest version of the table had.
        files: number of files with such rows, those of earlier versions among them; -1 if they were
            not counted.
    """

    table: str
    uri: str
    rows: int
    files: int = -1


def find_rows(installation: Installation, model: str, keys: Collection[str]) -> list[Forgotten]:
    """Return where rows with some keys are, without erasing them.

    Raises:
        InputError: the model has no tables.
    """
    found = []
    for table, erasure in _erasures(installation, model, keys).items():
        uri = installation.table(table, model)
        if deltalake.DeltaTable.is_deltatable(uri):
            files = find_files(uri, erasure)
            rows = _count_newest(uri, files)
            found.append(Forgotten(table, uri, rows, len(files)))
    return found


def forget(
    installation: Installation, model: str, keys: Collection[str], wait: Wait
) -> list[Forgotten]:
    """Erase the rows with some keys from snapshots, quarantine, predictions and dead letters.

    Args:
        installation: where the tables are.
        model: the model, which has the name of its dataset.
        keys: values of `_key`.
        wait: called again and again while a job needs the rows.

    Raises:
        InputError: the model has no tables.
        TransientError: another command changed a table at the same time.
        OSError: a table's folder cannot be written.
    """
    erasures = _erasures(installation, model, keys)
    uris = {table: installation.table(table, model) for table in erasures}
    rows = {
        DATASETS: forget_in_snapshots(model, uris[DATASETS], erasures[DATASETS], wait),
        QUARANTINE: _forget_in_quarantine(uris[QUARANTINE], erasures[QUARANTINE]),
        **{
            table: forget_in_predictions(uris[table], erasures[table], wait)
            for table in (PREDICTIONS, DEAD_LETTERS)
        },
    }
    for table in (PREDICTIONS, DEAD_LETTERS):
        # Predictions and dead letters of unfinished jobs are in the folder of the predictions.
        forget_in_jobs(uris[PREDICTIONS], erasures[table])
    if rows[DATASETS]:
        for derived in {table for kind in all_kinds() for table in kind.derived_tables}:
            Folder(installation.table(derived, model)).remove()  # the next run makes it again
    return [Forgotten(table, uris[table], count) for table, count in rows.items()]


def _forget_in_quarantine(uri: str, erasure: Erasure) -> int:
    if not deltalake.DeltaTable.is_deltatable(uri):
        return 0
    erased = erase_in_newest(uri, erasure)
    scrub_files(uri, erasure)
    return erased


def _erasures(installation: Installation, model: str, keys: Collection[str]) -> dict[str, Erasure]:
    """Return which rows of each table have one of the keys."""
    try:
        key_columns = open_snapshot(installation, model).schema.key
    except InputError:
        if not deltalake.DeltaTable.is_deltatable(installation.table(PREDICTIONS, model)):
            raise
        key_columns = ()
    return {
        DATASETS: Erasure.by_value(KEY, keys),
        QUARANTINE: by_stored_row(keys, key_columns),
        PREDICTIONS: Erasure.by_value(KEY, keys),
        DEAD_LETTERS: by_dead_letter(keys, key_columns),
    }


def _count_newest(uri: str, files: dict[str, int]) -> int:
    import pyarrow as pa

    named = pa.table(deltalake.DeltaTable(uri).get_add_actions())["path"].to_pylist()
    return sum(count for path, count in files.items() if path in named)
