"""The report of one kind of things that `millrace clean` looked at."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from millrace.models.common.counted import counted
from millrace.models.common.errors import MillraceError


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
        skipped: what could not be removed, and why.
    """

    kind: str
    model: str = ""
    removed: tuple[str, ...] = ()
    kept: Mapping[str, str] = field(default_factory=dict)
    files: int = 0
    size: int = 0
    skipped: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return what was removed, and what was not, in one line."""
        names = f" ({', '.join(self.removed)})" if self.removed else ""
        not_removed = f"; {'; '.join(self.skipped)}" if self.skipped else ""
        taken = (
            f", {counted(self.files, 'file')}, {counted(self.size, 'byte')}" if self.files else ""
        )
        return f"{self.subject}: {len(self.removed)} removed{names}{taken}{not_removed}"

    @property
    def subject(self) -> str:
        """What was looked at, such as `versions of digits`."""
        return f"{self.kind} of {self.model}" if self.model else self.kind


def skip_if_it_fails(kind: str, model: str, work: Callable[[], Cleaned]) -> Cleaned:
    """Return what some work cleaned; if it fails, why, because other work can still be done."""
    from deltalake.exceptions import DeltaError

    try:
        return work()
    except (MillraceError, DeltaError, OSError) as error:
        return Cleaned(kind, model, skipped=(describe(error),))


def describe(error: Exception) -> str:
    """Return what failed and what was seen, in one line."""
    if isinstance(error, MillraceError):
        return f"{error.what}: {error.seen}" if error.seen else error.what
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
