"""Which files of its source an ingestion read, and why, in one line."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from posixpath import commonpath, dirname, relpath

from millrace.models.common.errors import list_names
from millrace.models.data.parts import Part, ReadingPlan
from millrace.models.data.sources.source import SourceFile

MAX_NAMED = 5
"""Most files that a line names."""
NO_FILES = "the source is not made of files"


@dataclass(frozen=True)
class FilesRead:
    """Which files of the source an ingestion read.

    Attributes:
        files: number of files of the source; 0 if it is not made of files.
        read: number of files that were read.
        new: number of them that the newest snapshot did not have.
        changed: number of them that have changed since.
        beside: number of them that are unchanged; their rows share files of the table with others.
        forgotten: number of them that are unchanged, and of whose rows some were forgotten, or of
            their neighbours' rows.
        removed: number of the newest snapshot's files that the source no longer has.
        all_because: why all files were read; empty if only some had to be.
    """

    files: int
    read: int
    new: int = 0
    changed: int = 0
    beside: int = 0
    removed: int = 0
    forgotten: int = 0
    all_because: str = ""

    @classmethod
    def by_plan(
        cls, plan: ReadingPlan, parts: Collection[Part], found: Sequence[SourceFile]
    ) -> "FilesRead":
        """Count what a plan reads.

        Args:
            plan: the plan.
            parts: parts of the newest snapshot.
            found: files of the source.
        """
        known = {file.path for part in parts for file in part.sources}
        read = {file.path for group in plan.read for file in group}
        outdated = {file.path for part in plan.dropped if part.outdated for file in part.sources}
        again = read & plan.unchanged
        return cls(
            files=len(found),
            read=len(read),
            new=len(read - known),
            changed=len((read & known) - plan.unchanged),
            beside=len(again - outdated),
            forgotten=len(again & outdated),
            removed=len(known - {file.path for file in found}),
        )

    @classmethod
    def all_of(cls, found: Sequence[SourceFile], because: str) -> "FilesRead":
        """Count a reading of all files, with its reason."""
        return cls(len(found), len(found), all_because=because if found else NO_FILES)

    def __str__(self) -> str:
        """Return what was read in words, such as `read 1 of 4 files (1 changed); 3 as before`."""
        if self.all_because:
            what = f"all {self.files:,} files" if self.files > 1 else "the file"
            return f"read {what if self.files else 'all rows'}: {self.all_because}"
        counts = {
            "new": self.new,
            "changed": self.changed,
            "unchanged beside them": self.beside,
            "with forgotten rows": self.forgotten,
        }
        why = ", ".join(f"{count:,} {word}" for word, count in counts.items() if count)
        text = f"read {self.read:,} of {self.files:,} files" + (f" ({why})" if why else "")
        gone = f", {self.removed:,} removed" if self.removed else ""
        return f"{text}; {self.files - self.read:,} as before{gone}"


def describe_files(counts: Mapping[str, int]) -> str:
    """Return numbers of rows by file in one line, such as `a.csv (12), b.csv (3)`.

    Args:
        counts: the numbers by path; at least one. The folder that all share is left out.
    """
    root = commonpath([dirname(path) for path in counts])
    named = [f"{relpath(path, root or '.')} ({count:,})" for path, count in counts.items()]
    return list_names(named, MAX_NAMED)
