"""Keys that were forgotten: later readings of the source leave their rows out.

A source often still has the rows, and then they would come back with the next file that is read
again. The dataset's folder stores hashes of the keys only: no key can be read there, but who
guesses a key can tell that it was forgotten.
"""

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from itertools import chain
from uuid import uuid4

import numpy as np
import pyarrow as pa

from millrace.models.common.arrays import Array
from millrace.models.data.erase_bad_rows import stored_keys
from millrace.models.data.folder import Folder
from millrace.models.data.row_checks import Checked
from millrace.models.data.schema import TableSchema
from millrace.models.data.snapshots import RETENTION
from millrace.models.data.split import Hashes, hash_rows, hash_texts, row_keys

FORGOTTEN = "forgotten"
"""Folder in the dataset's folder `_retention`: a file for each command, so that two at once do not
overwrite each other's keys."""


@dataclass(frozen=True)
class ForgottenKeys:
    """The keys of a dataset that were forgotten.

    Attributes:
        hashes: their hashes by `hash_texts`, uint64, ascending.
    """

    hashes: Hashes = field(default_factory=lambda: np.empty(0, np.uint64))

    @classmethod
    def of(cls, keys: Collection[str]) -> "ForgottenKeys":
        """Return keys as forgotten ones."""
        return cls(np.unique(hash_texts(pa.array(sorted(keys), pa.string()))))

    @classmethod
    def read(cls, uri: str) -> "ForgottenKeys":
        """Read the keys that were forgotten of a dataset's table.

        Raises:
            OSError: the table's folder cannot be read.
        """
        folder = _folder_of(uri)
        stored = (folder.read_json(file.base_name) or [] for file in folder.files(".json"))
        return cls(np.array(sorted({int(each, 16) for each in chain(*stored)}), np.uint64))

    def write(self, uri: str) -> None:
        """Store the keys beside those that are stored.

        Raises:
            OSError: the table's folder cannot be written.
        """
        hashes = [f"{int(each):016x}" for each in self.hashes]
        _folder_of(uri).write_json(f"{uuid4().hex}.json", hashes)

    def find(self, keys: pa.Array) -> Array:
        """Return which of some keys, strings or null, are among these: bool `[keys]`."""
        return np.isin(hash_texts(keys.fill_null("")), self.hashes)

    def among(self, keys: Collection[str]) -> frozenset[str]:
        """Return those of some keys that are among these."""
        given = sorted(keys)
        found = self.find(pa.array(given, pa.string()))
        return frozenset(key for key, is_among in zip(given, found, strict=True) if is_among)

    def leave_out(self, checked: Checked, schema: TableSchema) -> Checked:
        """Return checked rows without those of the keys.

        Of bad rows, those stay that cannot be read as rows, or whose text is cut.
        """
        if not len(self.hashes):
            return checked
        good, bad = checked.good, checked.bad
        keys = row_keys(good, schema.key, hash_rows(good) if not schema.key else self.hashes[:0])
        stays = ~self.find(keys)
        columns = {name: schema.find(name) for name in schema.key}
        bad_stays = np.full(bad.num_rows, True)
        for found in stored_keys(bad["row"], columns):
            bad_stays &= ~self.find(found)
        if stays.all() and bad_stays.all():
            return checked
        return replace(
            checked,
            good=good.filter(pa.array(stays)),
            bad=bad.filter(pa.array(bad_stays)),
            places=checked.places[bad_stays],
        )


def remember_forgotten(uri: str, keys: Collection[str]) -> None:
    """Add keys to those that were forgotten of a dataset's table."""
    if keys:
        ForgottenKeys.of(keys).write(uri)


def remove_forgotten(uri: str, keys: Collection[str]) -> frozenset[str]:
    """Take keys from those that were forgotten of a dataset's table, and return those taken."""
    earlier = _folder_of(uri).files(".json")
    known = ForgottenKeys.read(uri)
    taken = known.among(keys)
    if taken:
        ForgottenKeys(np.setdiff1d(known.hashes, ForgottenKeys.of(taken).hashes)).write(uri)
        for file in earlier:
            _folder_of(uri).delete(file.base_name)
    return taken


def _folder_of(uri: str) -> Folder:
    return Folder(f"{uri}/{RETENTION}").subfolder(FORGOTTEN)


def describe_left_out(rows: int) -> str:
    """Return what rows that were left out mean."""
    were, keys = ("row was", "its key was") if rows == 1 else ("rows were", "their keys were")
    it = "it" if rows == 1 else "them"
    return (
        f"{rows:,} {were} left out of the source, because {keys} forgotten; erase {it} from the "
        "source too"
    )
