"""Reads back the files that a run has just logged as a model, before they become a version.

The files that MLflow stored must be those that were logged. A version that passed its gates is
fetched next, to decide whether it becomes champion, so what was read is kept in the cache.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from millrace.models.common.bounded_files import check_folder
from millrace.models.common.errors import InputError, WorkError
from millrace.models.registry.artifact_store import StoredFolder
from millrace.models.registry.version_files import ModelVersion, keep_files, staged_files

Keep = Callable[[ModelVersion, Path], None]
"""Keeps the files as those of a registered version in the cache."""


@contextmanager
def read_back(logged: ModelVersion, stored: StoredFolder, cache: Path) -> Iterator[Keep]:
    """Read back the files of a logged model, and remove them after the block unless they are kept.

    This process wrote the files, so it checks their limits itself: a file that would take all
    memory is no danger here.

    Args:
        logged: the model as it was logged, with the digests of its files in its tags; `UNNUMBERED`.
        stored: the folder of its files in the artifact store.
        cache: the folder in which fetched versions are kept.

    Raises:
        WorkError: the files that MLflow stored are not those that were logged, or could not be
            read as those of a version.
        TransientError: the artifact store does not answer.
    """
    with ExitStack() as stack:
        try:
            staged = stack.enter_context(staged_files(logged, stored, cache))
        except InputError as error:
            raise WorkError(
                "the model files that MLflow stored differ from the certified ones",
                seen=error.seen or error.what,
                valid=error.valid,
                hint="check MLflow's artifact store",
            ) from error
        try:
            check_folder(staged)
        except (ValueError, OSError) as error:
            raise WorkError(
                f"the evidence files of {logged.title} cannot be read", seen=error
            ) from error
        yield partial(keep_files, staged)
