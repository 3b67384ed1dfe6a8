"""Which snapshots running jobs read, so that nobody removes their rows meanwhile.

A job holds a lease in the table's folder `_readers`, which ends with the job's process.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

from millrace.models.data.folder import Folder
from millrace.models.data.lease import hold_lease, is_held

READERS = "_readers"


@contextmanager
def hold_snapshot(uri: str, version: int) -> Iterator[None]:
    """Keep the rows of a snapshot while the block runs.

    Args:
        uri: URI of the dataset's table.
        version: the snapshot's version.
    """
    folder, name = Folder(f"{uri}/{READERS}"), f"{version}-{uuid4().hex[:8]}"
    try:
        with hold_lease(folder, name):
            yield
    finally:
        folder.delete(f"{name}.lease")


def find_held_versions(uri: str) -> frozenset[int]:
    """Return the versions of a dataset's table that running jobs read."""
    folder = Folder(f"{uri}/{READERS}")
    names = {
        file.base_name.rpartition(".")[0]
        for ending in (".lock", ".lease")
        for file in folder.files(ending)
    }
    return frozenset(int(name.partition("-")[0]) for name in names if is_held(folder, name))
