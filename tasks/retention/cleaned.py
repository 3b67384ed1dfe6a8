"""The report of one kind of things that `millrace clean` looked at."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Cleaned:
    """What was removed of one kind, or would be, and what stays.

    Attributes:
        kind: versions, artifacts, snapshots, predictions, dead letters, staging or logs.
        model: the model; empty for what belongs to the home.
        removed: names of what was removed.
        kept: why the rest stays, by name.
        files: number of files.
        size: their size in bytes; 0 if the store does not say.
        skipped: why something was not removed; empty if all was.
    """

    kind: str
    model: str = ""
    removed: tuple[str, ...] = ()
    kept: Mapping[str, str] = field(default_factory=dict)
    files: int = 0
    size: int = 0
    skipped: str = ""

    def __str__(self) -> str:
        """Return what was removed, and what was not, in one line."""
        of = f" of {self.model}" if self.model else ""
        names = f" ({', '.join(self.removed)})" if self.removed else ""
        not_removed = f"; {self.skipped}" if self.skipped else ""
        taken = f", {self.files:,} files, {self.size:,} bytes" if self.files else ""
        return f"{self.kind}{of}: {len(self.removed)} removed{names}{taken}{not_removed}"
