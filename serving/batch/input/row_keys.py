"""What a row of a batch job is known by."""

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from millrace.models.data.coerce import cast
from millrace.models.data.schema import KEY, Column
from millrace.models.data.split import joined_keys


def declared_keys(
    rows: pa.RecordBatch | pa.Table, key: Sequence[str], held: Sequence[Column]
) -> pa.Array | None:
    """Return the rows' keys where the input has any: its own `_key`, or the key columns, joined.

    Args:
        rows: as they were read.
        key: the key columns.
        held: the columns as the dataset holds them.
    """
    if KEY in rows.schema.names:
        return cast(cells_of(rows, KEY), Column(KEY, "string")).values
    if not key:
        return None
    texts = {name: _key_cells(cells_of(rows, name), name, held) for name in key}
    return joined_keys(pa.record_batch(texts), tuple(key))


def cells_of(rows: pa.RecordBatch | pa.Table, name: str) -> pa.Array:
    """Return a column in one piece; one that is not there counts as null."""
    if name not in rows.schema.names:
        return pa.nulls(rows.num_rows)
    column = rows.column(name)
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _key_cells(cells: pa.Array, name: str, held: Sequence[Column]) -> pa.Array:
    """Return cells as text as ingestion writes it; what is not of the held type stays as it is."""
    text = cast(cells, Column(name, "string")).values
    column = next((column for column in held if column.name == name), None)
    return (
        text if column is None else pc.coalesce(cast(cells, column).values.cast(pa.string()), text)
    )
