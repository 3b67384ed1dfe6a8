import json
import random
from dataclasses import replace

import numpy as np
import pytest

from millrace.models.data.column_statistics import ColumnStatistics
from millrace.models.data.parts import (
    LARGE_BYTES,
    MOST_SMALL,
    SMALL_PARTS,
    Part,
    SourceFile,
    combine,
    files_of,
    group_files,
    plan_reading,
)
from millrace.models.data.split import Digest


def source(path: str, size: int = 100, modified: int = 1) -> SourceFile:
    return SourceFile(path, size, modified, "f" * 64)


def part(*sources: SourceFile, rows: int = 1, bad: int = 0) -> Part:
    name = "+".join(each.path for each in sources)
    return Part(
        id=name,
        sources=sources,
        files=(f"{name}.parquet",),
        digest=Digest(rows, np.array([rows * 7, rows * 11], dtype=np.uint64)),
        statistics={"c": ColumnStatistics(rows, 0, None, (("a", rows),))},
        quarantined=bad,
        reasons={"c: null": bad} if bad else {},
    )


A, B, C = source("a"), source("b"), source("c")


def planned(parts: list[Part], found: list[SourceFile]) -> tuple[list[str], list[str], list[str]]:
    """Return what is kept, dropped and read, by path."""
    plan = plan_reading(parts, found, lambda old, new: old == new)
    read = [file.path for group in plan.read for file in group]
    return [each.id for each in plan.kept], [each.id for each in plan.dropped], read


def test_unchanged_files_are_kept_and_new_ones_read() -> None:
    assert planned([part(A), part(B)], [A, B, C]) == (["a", "b"], [], ["c"])


def test_a_vanished_file_takes_its_rows_with_it() -> None:
    assert planned([part(A), part(B)], [B]) == (["b"], ["a"], [])


def test_a_changed_file_is_read_again() -> None:
    assert planned([part(A), part(B)], [replace(A, modified=2), B]) == (["b"], ["a"], ["a"])


def test_files_that_were_read_together_go_together() -> None:
    changed = replace(B, size=5)
    assert planned([part(A, B), part(C)], [A, changed, C]) == (["c"], ["a+b"], ["a", "b"])


def test_a_source_without_files_is_always_read() -> None:
    made = replace(part(A), sources=())
    assert planned([made], []) == ([], ["a"], [])


def test_the_smallest_of_many_small_parts_are_read_again_together() -> None:
    small = [source(f"{number:03d}", 100 + number) for number in range(MOST_SMALL + 1)]
    large = source("x", LARGE_BYTES)
    known = [*map(part, small), part(large)]
    plan = plan_reading(known, [*small, large], lambda old, new: old == new)
    assert [each.id for each in plan.kept] == [each.path for each in [*small[-SMALL_PARTS:], large]]
    assert [tuple(each.path for each in group) for group in plan.read] == [
        tuple(each.path for each in small[:-SMALL_PARTS])
    ]


def test_a_table_that_grows_every_night_reads_few_rows_again() -> None:
    found = [source(f"0-{number:02d}", 500) for number in range(20)]
    parts = [part(*group) for group in group_files(found)]
    again = 0
    for night in range(1, 366):
        found.append(source(f"{night:03d}", 100))
        plan = plan_reading(parts, found, lambda old, new: old == new)
        read = [file for group in plan.read for file in group]
        again += sum(file.size for file in read) - 100
        parts = [*plan.kept, *(part(*group) for group in plan.read)]
        assert len(parts) <= MOST_SMALL + 1
    assert {file for each in parts for file in each.sources} == set(found)
    assert again < 3 * sum(file.size for file in found)


def test_small_files_are_read_together_and_large_ones_alone() -> None:
    files = [source("a"), source("b", LARGE_BYTES), source("c", LARGE_BYTES), source("d")]
    groups = [[file.path for file in group] for group in group_files(files, 0)]
    assert groups == [["a", "b"], ["c"], ["d"]]


def test_few_files_of_a_whole_reading_are_a_part_each() -> None:
    files = [source("a", 500), source("b", 100), source("c", 500), source("d", LARGE_BYTES)]
    assert [len(group) for group in group_files(files)] == [1, 1, 1, 1]


def test_new_files_share_a_part_once_there_are_many() -> None:
    old = [source(f"{number:03d}") for number in range(SMALL_PARTS)]
    new = [source(f"new{number}") for number in range(5)]
    few, many = (
        plan_reading([part(file) for file in known], [*known, *new], lambda old, new: old == new)
        for known in (old[:3], old)
    )
    assert (len(few.read), len(many.read)) == (5, 1)


@pytest.mark.parametrize("count", [17, 100, 5000])
@pytest.mark.parametrize("size", [0, 100, LARGE_BYTES // 10])
def test_many_files_of_a_whole_reading_leave_room_for_new_parts(count: int, size: int) -> None:
    files = [source(f"{number:04d}", size) for number in range(count)]
    groups = group_files(files)
    small = [group for group in groups if sum(file.size for file in group) < LARGE_BYTES]
    assert len(small) <= SMALL_PARTS + 1
    assert [file for group in groups for file in group] == files


def test_parts_together_are_what_all_their_rows_are() -> None:
    found = combine([part(C, rows=3, bad=2), part(A, rows=1), part(B, rows=2, bad=1)])
    assert (found.digest.rows, found.digest.sums.tolist()) == (6, [42, 66])
    assert found.statistics["c"].counts == (("a", 6),)
    assert (found.quarantined, found.reasons) == (3, {"c: null": 3})
    assert files_of(found.parts) == ("a.parquet", "b.parquet", "c.parquet")


def test_nothing_together_is_nothing() -> None:
    assert combine([]).digest.rows == 0


def test_a_part_survives_json() -> None:
    made = part(A, B, rows=3, bad=1)
    again = Part.from_json(json.loads(json.dumps(made.as_json())))
    assert again.as_json() == made.as_json()
    assert again.digest.hexdigest() == made.digest.hexdigest()


@pytest.mark.parametrize("seed", range(20))
def test_after_any_history_every_file_is_in_one_part(seed: int) -> None:
    chance, parts, found = random.Random(seed), list[Part](), dict[str, SourceFile]()
    for step in range(30):
        for path in chance.sample("abcdefgh", chance.randrange(4)):
            kind = chance.choice(["put", "put", "remove"])
            found.pop(path, None)
            if kind == "put":
                found[path] = source(path, chance.choice([10, LARGE_BYTES]), step)
        listed = [found[path] for path in sorted(found)]
        plan = plan_reading(parts, listed, lambda old, new: old == new)
        parts = [*plan.kept, *(part(*group) for group in plan.read)]
        assert sorted(file.path for each in parts for file in each.sources) == sorted(found)
        assert {file for each in parts for file in each.sources} == set(listed)
