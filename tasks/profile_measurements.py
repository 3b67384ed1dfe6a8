"""What a profile measured, which is used again for a day; one profile measures at a time."""

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from millrace.models.common.errors import InputError
from millrace.models.common.file_locks import open_private, try_lock
from millrace.models.common.hardware import Machine
from millrace.models.common.installation import Installation
from millrace.models.common.private_files import replace_private
from millrace.models.config.slo_spec import SloSpec
from millrace.models.registry.tracking import TrackedRun
from millrace.models.registry.version_files import ModelVersion

T = TypeVar("T")
FOLDER, LOCK = "profiles", ".lock"
KEPT_SECONDS = 24 * 3600.0
"""How long measurements are used again: a machine changes."""


@dataclass(frozen=True)
class KeptTimes:
    """What was measured of a version; a `Kept` of the last day, and of the MLflow run.

    Attributes:
        installation: has the folder.
        run: the MLflow run.
        version: the version.
        machine: the machine.
        engine: what computes the version.
        goal: the goal, whose sizes of requests matter.
        anew: whether nothing that was measured before counts.
    """

    installation: Installation
    run: TrackedRun
    version: ModelVersion
    machine: Machine
    engine: str
    goal: SloSpec
    anew: bool = False

    def read(self, name: str, parse: Callable[[Any], T]) -> T | None:
        """Return what was measured in the last day; None if nothing was, or it is damaged."""
        file = self._file(name)
        try:
            if self.anew or time.time() - file.stat().st_mtime > KEPT_SECONDS:
                return None
            return parse(json.loads(file.read_text()))
        except (OSError, ValueError):
            return None

    def write(self, name: str, measured: Any) -> None:
        """Keep what was measured, here and in the MLflow run."""
        text = json.dumps(measured)
        file = self._file(name)
        self._remove_old()
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        replace_private(file, text)
        self.run.log_text(text, f"profile/{file.name}")

    def _remove_old(self) -> None:
        """Remove what is too old to be used again, of any version."""
        for folder in (self.installation.home / FOLDER).glob("[!.]*"):
            if time.time() - folder.stat().st_mtime > KEPT_SECONDS:
                shutil.rmtree(folder, ignore_errors=True)

    def _file(self, measurement: str) -> Path:
        sizes = (self.goal.rows, self.goal.prompt_tokens, self.goal.answer_tokens)
        facts = (self.machine.kind, self.machine.cores, self.engine, *map(dict, sizes))
        key = hashlib.sha256(repr(facts).encode()).hexdigest()[:12]
        name = f"{self.version.model}-{self.version.version}-{self.version.digest[:12]}-{key}"
        return self.installation.home / FOLDER / name / f"{measurement}.json"


@contextmanager
def alone(installation: Installation) -> Iterator[None]:
    """Let one profile of a home run at a time: two would measure each other.

    Raises:
        InputError: another one runs.
    """
    folder = installation.home / FOLDER
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with open_private(folder / LOCK) as lock:
        if not try_lock(lock):
            raise InputError(
                "another profile is running",
                seen=f"{folder / LOCK} is locked",
                valid="one at a time: a profile measures what the whole machine can do",
                hint="run this one when it has ended",
            )
        yield
