"""The short form of the third part of `make soak`."""

from collections import Counter
from pathlib import Path

from tests.chaos.batch_crowd import Reader, race
from tests.chaos.batch_kills import answer, content, prepare

ROWS = 20_000
GOOD = ROWS - 20


def test_of_racing_jobs_one_wins_and_a_reader_sees_one_commit_or_another(tmp_path: Path) -> None:
    prepare(tmp_path, ROWS, pause=0.0)
    answer(tmp_path, 99)
    with Reader(tmp_path / "out") as reader:
        ends = Counter(race(tmp_path, 3))
    assert ends["won"] == 1
    assert all("committed by another job meanwhile" in end for end in ends if end != "won")
    assert content(tmp_path)[:2] == (GOOD, GOOD)
    assert {rows for rows, _ in reader.seen} == {GOOD}
    assert all(len(jobs) == 1 for _, jobs in reader.seen)
    assert len(reader.seen) == 2
