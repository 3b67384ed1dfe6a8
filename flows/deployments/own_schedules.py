"""The pipeline files that `millrace schedule` added or removed, beside those of MILLRACE_PIPELINES.

They are kept in the home, so that they hold for the running `up`, which reads them every few
seconds, and for the next one.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING

from millrace.models.common.private_files import replace_private

if TYPE_CHECKING:
    from millrace.flows.deployments.scheduled_files import PipelineFile

FILE = "own-schedules.json"


@dataclass(frozen=True)
class OwnSchedules:
    """The user's changes to the files that are scheduled.

    Attributes:
        added: paths that are scheduled beside those of MILLRACE_PIPELINES.
        removed: paths that are not scheduled, although MILLRACE_PIPELINES has them.
    """

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()

    def with_added(self, file: str) -> "OwnSchedules":
        """Return the changes with a file that is scheduled."""
        added = tuple(dict.fromkeys((*self.added, file)))
        return OwnSchedules(added, tuple(each for each in self.removed if each != file))

    def with_removed(self, file: str) -> "OwnSchedules":
        """Return the changes with a file that is not scheduled."""
        removed = tuple(dict.fromkeys((*self.removed, file)))
        return OwnSchedules(tuple(each for each in self.added if each != file), removed)

    def patterns(self, chosen: Iterable[str]) -> tuple[str, ...]:
        """Return the patterns of MILLRACE_PIPELINES with the added files."""
        return tuple(dict.fromkeys((*chosen, *map(escape, self.added))))

    def scheduled(self, files: "Sequence[PipelineFile]") -> "tuple[PipelineFile, ...]":
        """Return the files without the removed ones."""
        return tuple(each for each in files if each.file not in self.removed)


def read_own(home: Path) -> OwnSchedules:
    """Return the changes in a home; none if it has none, or if they cannot be read."""
    try:
        known = json.loads((home / FILE).read_text())
        return OwnSchedules(tuple(map(str, known["added"])), tuple(map(str, known["removed"])))
    except (OSError, ValueError, KeyError, TypeError):
        return OwnSchedules()


def write_own(home: Path, own: OwnSchedules) -> None:
    """Replace the changes in a home; the file is readable by this user only."""
    replace_private(home / FILE, json.dumps(asdict(own), indent=1) + "\n")
