"""Notes about the open runs of processes, so that the runs of dead processes can be ended.

A process keeps the file of its note locked. The kernel drops the lock however the process ends.
`millrace.models.registry.tracking` ends MLflow runs that dead processes left open, and
`millrace.flows.deployments.left_flow_runs` ends Prefect's flow runs.
"""

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from millrace.models.common.file_locks import try_lock

FOLDER = "open_runs"
LEFT = "the run's process ended without reporting a result"


@dataclass
class Note:
    """The content of a note: an open MLflow run.

    Attributes:
        tracking_uri: address of the run's MLflow.
        run_id: id of the run.
        status: final status to set if the run's process does not set it in MLflow.
        why: text of the tag `millrace.error` of a failed run.
    """

    tracking_uri: str
    run_id: str
    status: str = "FAILED"
    why: str = LEFT


class LockedNote:
    """A file that this process keeps locked. A run goes on if its file cannot be written."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._held: IO[str] | None = None

    @property
    def is_held(self) -> bool:
        """Whether the file is written and locked, so that a later command can find it."""
        return self._held is not None

    def write(self, content: Mapping[str, Any]) -> None:
        """Write the file under a temporary name, lock it, and only then rename it."""
        staged = self._file.with_suffix(f".{os.getpid()}")
        try:
            self._file.parent.mkdir(exist_ok=True)
            held = os.fdopen(os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w")
            fcntl.flock(held, fcntl.LOCK_EX)
            json.dump(content, held)
            held.flush()
            staged.replace(self._file)
            self.close()
            self._held = held
        except OSError:
            with suppress(OSError):
                staged.unlink(missing_ok=True)

    def forget(self) -> None:
        """Delete the file, because the run has ended."""
        with suppress(OSError):
            self._file.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        """Unlock the file, and leave it to the next command."""
        if self._held is not None:
            self._held.close()
            self._held = None


class OpenRun:
    """An MLflow run that this process has open."""

    def __init__(self, folder: Path, note: Note) -> None:
        self._file = LockedNote(folder / FOLDER / f"{note.run_id}.json")
        self._note = note

    @property
    def tracking_uri(self) -> str:
        """Address of the run's MLflow."""
        return self._note.tracking_uri

    @property
    def is_noted(self) -> bool:
        """Whether the run has a note, from which a later command can end the run."""
        return self._file.is_held

    def write(self) -> None:
        """Write the note of the run."""
        self._file.write(asdict(self._note))

    def ends_as(self, status: str, why: str = "") -> None:
        """Note the final status of the run, before it is sent to MLflow."""
        self._note.status, self._note.why = status, why
        self.write()

    def forget(self) -> None:
        """Delete the note, because MLflow has the final status."""
        self._file.forget()

    def close(self) -> None:
        """Unlock the note, and leave it to the next command."""
        self._file.close()


@contextmanager
def lock_left_note(file: Path) -> Iterator[dict[str, Any] | None]:
    """Lock a note during the `with` block; yield its content.

    Yield None if the process that wrote the note still runs.
    """
    with file.open() as held:
        yield json.load(held) if try_lock(held) else None


def find_open_runs(folder: Path) -> dict[str, float]:
    """Return the ids of the open runs of living processes, and when each run began.

    Args:
        folder: `Installation.run`, the folder of the notes.

    Returns:
        Times in seconds since 1970, by run id.
    """
    found: dict[str, float] = {}
    for file in (folder / FOLDER).glob("*.json"):
        with suppress(OSError), lock_left_note(file) as left:
            if left is None:
                found[file.stem] = file.stat().st_mtime
    return found
