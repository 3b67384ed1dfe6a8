"""Which jobs read or write a dataset's table, so that nobody removes their rows meanwhile.

A job holds a lease in the table's folder `_readers`, which ends with the job's process. While a
command erases rows in place, the others wait before they begin.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from uuid import uuid4

from millrace.models.common.slow_step import report_while
from millrace.models.data.folder import Folder
from millrace.models.data.lease import Work, held_names, hold_lease, is_held
from millrace.models.data.snapshots import Snapshot

READERS = "_readers"
INGESTION = "ingestion"
ERASURE = "erasure"
_LOOK_SECONDS = 0.2


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


@contextmanager
def hold_ingested(uri: str, ingest: Callable[[], Snapshot]) -> Iterator[Snapshot]:
    """Keep the rows of the snapshot that an ingestion returns, while the block runs.

    Nobody erases rows between the ingestion and the block.

    Args:
        uri: URI of the dataset's table.
        ingest: ingests.
    """
    with ExitStack() as held:
        with hold_ingestion(uri):
            snapshot = ingest()
            held.enter_context(hold_snapshot(uri, snapshot.version))
        yield snapshot


def find_held_versions(uri: str) -> frozenset[int]:
    """Return the versions of a dataset's table that running jobs read."""
    return frozenset(int(what) for what in _find_held(uri) if what.isdigit())


def is_ingesting(uri: str) -> bool:
    """Return whether an ingestion into a table is running."""
    return INGESTION in _find_held(uri)


@contextmanager
def hold_erasure(uri: str) -> Iterator[None]:
    """Keep other jobs from beginning to read or write a table while the block runs.

    Jobs that run already are not ended: look for them in the block.

    Raises:
        TransientError: another command holds it.
    """
    with hold_lease(
        Folder(f"{uri}/{READERS}"), ERASURE, Work(f"another `millrace forget` in {uri}")
    ):
        yield


@contextmanager
def _hold(uri: str, what: str, work: Work) -> Iterator[None]:
    with hold_lease(Folder(f"{uri}/{READERS}"), f"{what}-{uuid4().hex[:8]}", work):
        wait_for_erasure(uri)
        yield


def wait_for_erasure(uri: str) -> None:
    """Wait while a command erases rows in place; call it after taking the lease of a job."""
    if _is_erasing(uri):
        with report_while(f"waiting for `millrace forget`, which erases rows in {uri}"):
            while _is_erasing(uri):
                time.sleep(_LOOK_SECONDS)


def _is_erasing(uri: str) -> bool:
    """Return whether a command erases rows."""
    return is_held(Folder(f"{uri}/{READERS}"), ERASURE)


def _find_held(uri: str) -> set[str]:
    return {name.partition("-")[0] for name in held_names(Folder(f"{uri}/{READERS}"))}
