"""Parts of a snapshot: which files of the source their rows come from, and what is kept or read.

A part is a group of the source's files that were read together, and the files of the table with
their rows. An ingestion keeps the parts whose files are unchanged, reads new and changed files into
new parts, and drops the parts of vanished files. What it combines is what a full reading gives.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import reduce
from itertools import chain
from typing import Any

from millrace.models.data.column_statistics import ColumnStatistics, merge
from millrace.models.data.lacked_columns import LackedColumns, combine_lacked
from millrace.models.data.sources.source import SourceFile
from millrace.models.data.split import Digest

LARGE_BYTES = 32 * 1024 * 1024
"""Files of the source are read together until they have this size."""
MOST_SMALL = 32
"""Most parts that are smaller than `LARGE_BYTES`. Of more, all but the `SMALL_PARTS` largest are
read again together, so that a table that grows by small files does not fall apart into them."""
SMALL_PARTS = 16
"""Up to about this many small parts files are spread over several, so that a change of one file
reads few others again; then new files share a part. `MOST_SMALL` leaves room for those."""


@dataclass(frozen=True)
class Part:
    """Rows that were read together, good and bad.

    Attributes:
        id: name of the part, which no other part has.
        sources: the files of the source, in order; none if the source has no files.
        files: names of the table's files with the rows, in order.
        digest: digest of the rows.
        statistics: statistics of the rows, by column.
        quarantined: number of bad rows.
        reasons: number of bad rows by reason.
        bad_files: number of bad rows by path of their file, as far as it is known.
        line_breaks: number of cells of CSV files that have line breaks.
        lacked_columns: the files of the source that lack columns of the table.
        left_out: number of rows that were left out, because their keys were forgotten.
        outdated: whether rows were erased since, so that the counts of bad rows and of those left
            out are not those of a reading; the next ingestion reads its files again.
    """

    id: str
    sources: tuple[SourceFile, ...]
    files: tuple[str, ...]
    digest: Digest
    statistics: Mapping[str, ColumnStatistics] = field(repr=False)
    quarantined: int = 0
    reasons: Mapping[str, int] = field(default_factory=dict)
    bad_files: Mapping[str, int] = field(default_factory=dict)
    line_breaks: int = 0
    lacked_columns: tuple[LackedColumns, ...] = ()
    left_out: int = 0
    outdated: bool = False

    @property
    def size(self) -> int:
        """Size of the source's files in bytes."""
        return sum(source.size for source in self.sources)

    def as_json(self) -> dict[str, Any]:
        """Return JSON-ready values."""
        return {
            **{name: value for name, value in vars(self).items() if name != "sources"},
            "sources": [asdict(source) for source in self.sources],
            "lacked_columns": [asdict(each) for each in self.lacked_columns],
            "digest": self.digest.hexdigest(),
            "statistics": {name: each.as_json() for name, each in self.statistics.items()},
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Part":
        """Build from the dictionary that `as_json` gives, after a trip through JSON."""
        return cls(
            id=values["id"],
            sources=tuple(SourceFile(**source) for source in values["sources"]),
            files=tuple(values["files"]),
            digest=Digest.from_hex(values["digest"]),
            statistics={
                name: ColumnStatistics.from_json(each)
                for name, each in values["statistics"].items()
            },
            quarantined=values["quarantined"],
            reasons=values["reasons"],
            bad_files=values.get("bad_files", {}),
            line_breaks=values.get("line_breaks", 0),
            lacked_columns=tuple(map(LackedColumns.from_json, values.get("lacked_columns", ()))),
            left_out=values.get("left_out", 0),
            outdated=values.get("outdated", False),
        )


@dataclass(frozen=True)
class ReadingPlan:
    """What an ingestion does with the parts of the newest snapshot and the files of the source.

    Attributes:
        kept: parts whose rows stay.
        dropped: parts whose rows go.
        read: groups of files to read, each into a part of its own.
        unchanged: paths of the files that are as they were when they were read.
    """

    kept: tuple[Part, ...]
    dropped: tuple[Part, ...]
    read: tuple[tuple[SourceFile, ...], ...]
    unchanged: frozenset[str]


def plan_reading(
    parts: Sequence[Part],
    found: Sequence[SourceFile],
    is_same: Callable[[SourceFile, SourceFile], bool],
) -> ReadingPlan:
    """Decide which parts are kept, and which files are read.

    A part is kept if all its files are unchanged: a table's file cannot lose some of its rows. It
    is read again if it is outdated.

    Args:
        parts: parts of the newest snapshot.
        found: files of the source, in order.
        is_same: whether a file found is the same as one that was read, which has the same path.
    """
    now = {file.path: file for file in found}
    known = {file.path: file for part in parts for file in part.sources}
    unchanged = {path for path, old in known.items() if path in now and is_same(old, now[path])}
    kept = [
        part
        for part in parts
        if part.sources
        and not part.outdated
        and unchanged.issuperset(file.path for file in part.sources)
    ]
    small = sorted((part for part in kept if part.size < LARGE_BYTES), key=lambda part: -part.size)
    if len(small) > MOST_SMALL:
        # The smallest, as in a log-structured merge tree, so that a row is seldom read again.
        small, joined = small[:SMALL_PARTS], {part.id for part in small[SMALL_PARTS:]}
        kept = [part for part in kept if part.id not in joined]
    ids = {part.id for part in kept}
    stays = {file.path for part in kept for file in part.sources}
    read = [file for file in found if file.path not in stays]
    return ReadingPlan(
        kept=tuple(kept),
        dropped=tuple(part for part in parts if part.id not in ids),
        read=tuple(group_files(read, SMALL_PARTS - len(small))),
        unchanged=frozenset(unchanged),
    )


def group_files(
    files: Sequence[SourceFile], small_parts: int | None = None
) -> list[tuple[SourceFile, ...]]:
    """Return the files in groups, in order, each to be read into a part.

    Args:
        files: the files.
        small_parts: about how many groups may be smaller than `LARGE_BYTES`; at least one may be.
            None: `SMALL_PARTS`.
    """
    most = max(1, SMALL_PARTS if small_parts is None else small_parts)
    small = sum(file.size for file in files if file.size < LARGE_BYTES)
    enough = max(1, min(LARGE_BYTES, small // most))
    groups: list[tuple[SourceFile, ...]] = []
    group: list[SourceFile] = []
    size = 0
    for file in files:
        group.append(file)
        size += file.size
        if size >= enough:
            groups.append(tuple(group))
            group, size = [], 0
    if group:
        groups.append(tuple(group))
    return groups


def take_same_rows(read: Sequence[Part], dropped: Sequence[Part]) -> tuple[Part, ...] | None:
    """Return the parts that were read, with the table's files of dropped parts with the same rows.

    So files of the source that were renamed or touched keep their files of the table.

    Returns:
        None if a part that was read has other rows than every dropped one.
    """
    left = {part.digest.hexdigest(): part.files for part in dropped}
    taken = []
    for part in read:
        files = left.pop(part.digest.hexdigest(), None) if part.digest.rows else ()
        if files is None:
            return None
        taken.append(replace(part, files=files))
    return tuple(taken)


@dataclass(frozen=True)
class Combined:
    """What parts are together.

    Attributes:
        parts: the parts, in the order of the source's files.
        digest: digest of all rows.
        statistics: statistics of all rows, by column.
        quarantined: number of bad rows.
        reasons: number of bad rows by reason, the most frequent first.
        bad_files: number of bad rows by path of their file, the most first.
        line_breaks: number of cells of CSV files that have line breaks.
        lacked_columns: the files of the source that lack columns of the table, in order.
        left_out: number of rows that were left out, because their keys were forgotten.
    """

    parts: tuple[Part, ...]
    digest: Digest
    statistics: dict[str, ColumnStatistics]
    quarantined: int
    reasons: dict[str, int]
    bad_files: dict[str, int]
    line_breaks: int
    lacked_columns: tuple[LackedColumns, ...]
    left_out: int


def combine(parts: Sequence[Part]) -> Combined:
    """Return what parts are together, in whatever order they are given."""
    ordered = sorted(parts, key=lambda part: part.sources[0].path if part.sources else "")
    digest, reasons, bad_files = Digest(), Counter[str](), Counter[str]()
    for part in ordered:
        digest.add(part.digest)
        reasons.update(part.reasons)
        bad_files.update(part.bad_files)
    statistics: dict[str, ColumnStatistics] = reduce(
        merge, (part.statistics for part in ordered), {}
    )
    quarantined = sum(part.quarantined for part in ordered)
    return Combined(
        tuple(ordered),
        digest,
        statistics,
        quarantined,
        dict(reasons.most_common()),
        dict(bad_files.most_common()),
        sum(part.line_breaks for part in ordered),
        combine_lacked(part.lacked_columns for part in ordered),
        sum(part.left_out for part in ordered),
    )


def files_of(parts: Sequence[Part]) -> tuple[str, ...]:
    """Return the names of the table's files, in the order of the parts."""
    return tuple(chain.from_iterable(part.files for part in parts))
