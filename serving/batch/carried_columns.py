"""Columns of the input that are written beside the predictions, so that they can be joined.

They are the key columns and those of `batch.columns`, with their names. Their types are those of
the dataset; a column that the dataset does not have is text.
"""

from collections.abc import Iterable, Sequence

import pyarrow as pa

from millrace.models.common.errors import InputError
from millrace.models.data.coerce import cast
from millrace.models.data.schema import KEY, Column
from millrace.serving.batch.input.input_pieces import cells_of
from millrace.serving.batch.job import ERROR, OUTPUTS, ROW

INTERNAL = frozenset({"features", ERROR})
"""Columns of the encoded rows that a carried column must not have the name of."""
TAKEN: frozenset[str] = OUTPUTS | INTERNAL | {KEY, ROW, "date", "scores"}


def select_carried(columns: Sequence[str], key: Iterable[str]) -> tuple[str, ...]:
    """Return the columns to carry: the key's, and those that the user names.

    A key column that has the name of a column of the output is left out: `_key` has its value.

    Raises:
        InputError: a column that the user names has the name of a column of the output.
    """
    if taken := [name for name in columns if name.casefold() in TAKEN]:
        raise InputError(
            f"batch.columns has {', '.join(taken)}, which the predictions have themselves",
            valid="columns of the input with other names",
            hint="leave it out, or rename the column in the input",
        )
    wanted = (*(name for name in key if name.casefold() not in TAKEN), *columns)
    # A Delta table tells no names apart that differ in their case only.
    found: dict[str, str] = {}
    for name in wanted:
        found.setdefault(name.casefold(), name)
    return tuple(found.values())


def carried_fields(names: Sequence[str], dataset_columns: Sequence[Column]) -> list[pa.Field]:
    """Return the fields of carried columns in the output."""
    return [pa.field(name, _column(name, dataset_columns).arrow) for name in names]


def carry(
    rows: pa.RecordBatch | pa.Table, names: Sequence[str], dataset_columns: Sequence[Column]
) -> dict[str, pa.Array]:
    """Return the cells of carried columns, as ingestion reads them; null where it cannot."""
    return {
        name: cast(cells_of(rows, name), _column(name, dataset_columns)).values for name in names
    }


def _column(name: str, dataset_columns: Sequence[Column]) -> Column:
    found = next((each for each in dataset_columns if each.name == name), None)
    return found or Column(name, "string")
