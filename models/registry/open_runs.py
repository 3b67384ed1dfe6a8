"""Notes of what processes of a home have open, so that what a dead one left can be ended.

A process keeps its note locked: the kernel drops the lock however that ends.
`millrace.models.registry.tracking` ends the runs of MLflow that are left,
`millrace.flows.deployments.left_flow_runs` those of Prefect.
"""

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

FOLDER = "open_runs"
LEFT = "its process ended without a word"


@dataclass
class Note:
    """What is known here of an open run.

    Attributes:
        tracking_uri: where it is.
        run_id: its id.
        status: what it is to become if its process cannot tell MLflow.
        why: tag of a run that failed.
    """

    tracking_uri: str
    run_id: str
    status: str = "FAILED"
    why: str = LEFT


class LockedNote:
    """A file that this process keeps locked. A disk that takes none stops no run."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._held: IO[str] | None = None

    @property
    def is_held(self) -> bool:
        """Whether a later command would find it."""
        return self._held is not None

    def write(self, content: Mapping[str, Any]) -> None:
        """Write the file, locked before it has its name."""
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
        """Delete the file: what it is of has ended."""
        with suppress(OSError):
            self._file.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        """Leave the file to whoever looks next."""
        if self._held is not None:
            self._held.close()
            self._held = None


class OpenRun:
    """A run of MLflow's that this process has open."""

    def __init__(self, folder: Path, note: Note) -> None:
        self._file = LockedNote(folder / FOLDER / f"{note.run_id}.json")
        self._note = note

    @property
    def tracking_uri(self) -> str:
        """Where the run is."""
        return self._note.tracking_uri

    @property
    def is_noted(self) -> bool:
        """Whether a later command would end the run."""
        return self._file.is_held

    def write(self) -> None:
        """Take note of the run."""
        self._file.write(asdict(self._note))

    def ends_as(self, status: str, why: str = "") -> None:
        """Write down how the run ended, which is sent to MLflow next."""
        self._note.status, self._note.why = status, why
        self.write()

    def forget(self) -> None:
        """Delete the note: MLflow knows."""
        self._file.forget()

    def close(self) -> None:
        """Leave the note to whoever looks next."""
        self._file.close()


@contextmanager
def lock_left_note(file: Path) -> Iterator[dict[str, Any] | None]:
    """Hold a note whose process is gone; None of one that is not."""
    with file.open() as held:
        found = None
        with suppress(BlockingIOError):
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            found = json.load(held)
        yield found
