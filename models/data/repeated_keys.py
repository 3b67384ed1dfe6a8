"""Counts the rows whose key an earlier row has.

`dataset.key` identifies a row: a batch job scores the first row of a key and refuses the others. In
ingestion such rows are good, because a key also keeps rows together in one split, so they are only
counted. Keys are compared by the 64-bit hashes of which `_bucket` is made: two different keys of 20
million have the same hash once in 100,000 tables.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from millrace.models.common.ahead import map_ahead
from millrace.models.data.parts import Part, files_of
from millrace.models.data.read_changes import ReadRows
from millrace.models.data.row_files import RowFile
from millrace.models.data.schema import KEY
from millrace.models.data.snapshots import Snapshot
from millrace.models.data.sources.arrow_source import scan_batches
from millrace.models.data.split import Hashes, hash_texts
from millrace.models.data.table_commit import filesystem_of

THREADS = 2


def count_repeated(uri: str, stored: Snapshot | None, done: ReadRows) -> int | None:
    """Return how many rows of an ingestion have a key that an earlier row has.

    Takes 16 bytes of memory for each row that is read; and for each kept row, if rows went.

    Args:
        uri: URI of the dataset's table, with the rows that are kept.
        stored: the newest snapshot; None if there is none.
        done: the rows that were read, and those that are kept.

    Returns:
        None if no columns are the key, or if it is not known, and nothing was read.
    """
    if not done.schema.key:
        return None
    known = stored.repeated_keys if stored and done.keeps_all else None
    if done.keeps_all and not done.read:
        return known
    new = [read.keys for read in done.read]
    if known is None:
        return count_in([*new, *_hashes(uri, files_of(done.kept))])
    rows = np.concatenate(new)
    distinct = np.unique(rows)
    if not len(distinct):  # every new row is bad
        return known
    added = [file for read in done.read for file in read.files]
    found = np.zeros(len(distinct), dtype=np.bool_)
    for hashes in _hashes(uri, files_of(done.kept), _range_of(added)):
        places = np.minimum(np.searchsorted(distinct, hashes), len(distinct) - 1)
        found[places[distinct[places] == hashes]] = True
    return known + len(rows) - len(distinct) + int(np.count_nonzero(found))


def recount(uri: str, before: int | None, parts: Sequence[Part]) -> int | None:
    """Return the number for a table of which rows were removed, so that it can only be smaller.

    Args:
        uri: URI of the dataset's table.
        before: the number before; None if it is not known.
        parts: the parts of the table, whose files exist already.
    """
    return count_in(list(_hashes(uri, files_of(parts)))) if before else before


def describe_repeated(rows: int, key: Sequence[str]) -> str:
    """Return what rows with the key of an earlier row mean, and what to do."""
    return (
        f"rows with the key of an earlier row ({', '.join(key)}): {rows:,}; they are trained on, "
        "but a batch job scores only the first row of a key: remove the rows that came twice, or "
        "name columns in dataset.key that identify a row"
    )


def count_in(hashes: Sequence[Hashes]) -> int:
    """Return how many hashes an earlier one is equal to."""
    together = np.concatenate([np.empty(0, np.uint64), *hashes])
    together.sort()
    return int(np.count_nonzero(together[1:] == together[:-1]))


def _hashes(
    uri: str, files: Sequence[str], wanted: ds.Expression | None = None
) -> Iterator[Hashes]:
    """Yield hashes of the keys in some of a table's files."""
    if not files:
        return
    filesystem, root = filesystem_of(uri)
    paths = [f"{root}{name}" for name in files]
    dataset = ds.dataset(paths, format="parquet", filesystem=filesystem)
    batches = scan_batches(dataset, [KEY], wanted)
    yield from map_ahead(lambda batch: hash_texts(batch.column(0)), batches, THREADS)


def _range_of(files: Sequence[RowFile]) -> ds.Expression | None:
    """Return a filter for the keys between the smallest and the largest of some files.

    Row groups of other keys are then not read, such as those of earlier nights where keys grow.
    """
    lows, highs = [], []
    for file in files:
        metadata = pq.read_metadata(file.path)
        place = metadata.schema.names.index(KEY)
        for group in range(metadata.num_row_groups):
            statistics = metadata.row_group(group).column(place).statistics
            if statistics is None or not statistics.has_min_max:
                return None
            lows.append(statistics.min)
            highs.append(statistics.max)
    if not lows:
        return None
    return (pc.field(KEY) >= min(lows)) & (pc.field(KEY) <= max(highs))
