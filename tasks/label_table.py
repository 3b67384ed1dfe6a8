"""The labels that came back for a model, as a Delta table: the last of each key and date counts.

Labels come in pieces, and late. A file has only what is new, and figures are of all labels so far.
"""

from collections.abc import Sequence
from datetime import UTC, datetime

import deltalake
import pyarrow as pa

from millrace.models.common.installation import Installation
from millrace.models.data.schema import KEY
from millrace.models.data.sources.delta_files import dataset_of

LABEL_TABLES = "labels"
"""Folder of the tables."""
DATE, LABEL, ADDED_AT = "date", "_label", "added_at"
ALL_DATES = ""
"""Date of a label that is that of its key on every date."""
COLUMNS = [KEY, DATE, LABEL]


def stored_labels(installation: Installation, model: str) -> pa.Table:
    """Return the labels that count: `_key`, `date` and `_label`, all text."""
    uri = installation.table(LABEL_TABLES, model)
    if not deltalake.DeltaTable.is_deltatable(uri):
        return pa.table({name: pa.array([], pa.string()) for name in COLUMNS})
    rows = dataset_of(deltalake.DeltaTable(uri)).to_table(columns=[*COLUMNS, ADDED_AT])
    return last_of_each(rows.sort_by(ADDED_AT).select(COLUMNS), (KEY, DATE))


def last_of_each(rows: pa.Table, by: Sequence[str]) -> pa.Table:
    """Return the last row of each combination of values of the columns `by`."""
    numbered = rows.append_column("_n", pa.array(range(len(rows))))
    return rows.take(numbered.group_by([*by]).aggregate([("_n", "max")])["_n_max"])


def store_labels(installation: Installation, model: str, labels: pa.Table) -> None:
    """Add labels that are new, or other than the stored one of their key and date.

    Args:
        installation: where the tables are.
        model: the model.
        labels: `_key`, `date` and `_label`, each key and date once.
    """
    texts = pa.table({name: labels[name].cast(pa.string()) for name in COLUMNS})
    new = texts.join(stored_labels(installation, model), COLUMNS, join_type="left anti")
    if not new.num_rows:
        return
    now = pa.array([datetime.now(UTC)] * len(new), pa.timestamp("us", "UTC"))
    added = new.append_column(ADDED_AT, now)
    deltalake.write_deltalake(installation.table(LABEL_TABLES, model), added, mode="append")
