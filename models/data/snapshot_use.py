"""Which jobs read or write a dataset's table, so that nobody removes their rows meanwhile.

A job holds a lease in the table's folder `_readers`, which ends with the job's process.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from uuid import uuid4

from millrace.models.data.folder import Folder
from millrace.models.data.lease import Work, held_names, hold_lease

READERS = "_readers"
INGESTION = "ingestion"


@contextmanager
def hold_snapshot(uri: str, version: int) -> Iterator[None]:
    """Keep the rows of a snapshot while the block runs.

    Args:
        uri: URI of the dataset's table.
        version: the snapshot's version.
    """
    with _hold(uri, str(version), Work(f"another use of version {version} of {uri}")):
        yield


@contextmanager
def hold_ingestion(uri: str) -> Iterator[None]:
    """Say that an ingestion into a table is running, while the block runs."""
    with _hold(uri, INGESTION, Work(f"another ingestion into {uri}")):
        yield


def find_held_versions(uri: str) -> frozenset[int]:
    """Return the versions of a dataset's table that running jobs read."""
    return frozenset(int(what) for what in _find_held(uri) if what != INGESTION)


def is_ingesting(uri: str) -> bool:
    """Return whether an ingestion into a table is running."""
    return INGESTION in _find_held(uri)


def _hold(uri: str, what: str, work: Work) -> AbstractContextManager[None]:
    return hold_lease(Folder(f"{uri}/{READERS}"), f"{what}-{uuid4().hex[:8]}", work)


def _find_held(uri: str) -> set[str]:
    return {name.partition("-")[0] for name in held_names(Folder(f"{uri}/{READERS}"))}
