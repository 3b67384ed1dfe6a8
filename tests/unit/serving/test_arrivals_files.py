"""Recorded arrivals: what a line may be, and which files stay."""

from pathlib import Path

import pytest

from millrace.models.common.errors import WorkError
from millrace.models.common.installation import ArrivalsKept, Installation
from millrace.serving.guard import arrivals_table
from millrace.serving.guard.arrivals_files import (
    FOLDER,
    ROTATE_BYTES,
    is_written,
    maintain_arrivals,
    remove_old,
    rotate,
    rotated_at,
)
from millrace.serving.guard.arrivals_table import UNKNOWN, read_arrivals

NOON = 1_795_608_000.0
MINUTE = 60.0


def line(
    second: float, model: str = "m", protocol: str = "grpc", rows: int = 1, rest: str = "9 850 0 ."
) -> str:
    return f"{int((NOON + second) * 1e6)} {model} {rows} {protocol} {rest}\n"


@pytest.fixture
def home(tmp_path: Path) -> Installation:
    (tmp_path / FOLDER).mkdir()
    return Installation(tmp_path, "", "")


def write(home: Installation, name: str, text: str) -> Path:
    path = home.home / FOLDER / name
    path.write_text(text)
    return path


def names(home: Installation) -> list[str]:
    return sorted(each.name for each in (home.home / FOLDER).iterdir())


def starts(home: Installation, *models: str) -> list[float]:
    found = read_arrivals(home, models or ("m",), NOON - 1e5, NOON + 1e5)
    return [float(each) - NOON for each in found.times]


def test_lines_are_read_in_the_order_of_their_starts(home: Installation) -> None:
    lines = line(2, rows=5), line(1, protocol="http", rest="345 - - ."), line(3, "m.columns")
    write(home, "8000.log", "".join(lines))
    assert starts(home, "m", "m.columns") == [1, 2, 3]
    found = read_arrivals(home, ("m",), NOON, NOON + 3)
    assert found.rows.tolist() == [1, 5]
    assert found.sizes.tolist() == [345, 9]
    assert found.is_grpc.tolist() == [False, True]
    assert found.statuses.tolist() == [UNKNOWN, 0]
    assert found.seconds[1] == pytest.approx(0.00085)
    assert found.seconds[0] != found.seconds[0]


@pytest.mark.parametrize(
    "torn",
    [
        line(5)[:-3],
        line(5)[:20] + "\n",
        line(5)[:9] + line(6),
        line(5).replace("grpc", "grpc x"),
        line(5, rest="9 850 0x ."),
        line(5, rest='9 850 " .'),
        "\n",
    ],
)
def test_a_line_that_was_not_written_whole_is_left_out(home: Installation, torn: str) -> None:
    write(home, "8000.log", line(1) + torn + line(7))
    assert {1, 7} >= set(starts(home)) >= {1}


@pytest.mark.parametrize("block", [64, arrivals_table.BLOCK_BYTES])
@pytest.mark.parametrize(
    "damaged",
    [
        b"\xff\xfe 1 2 3 4 5 6 .\n",
        b"\xff\xfe 1 2 3 4 5 6 7 8 9 .\n",
        line(5).encode().replace(b" m ", b" \xff "),
        b"x" * 200 + line(5).encode(),
        b"x" * 200 + b" " + line(5).encode(),
        b"\0\n\n\r\n",
        b"\xff",
    ],
)
def test_a_damaged_line_costs_no_other(
    home: Installation, monkeypatch: pytest.MonkeyPatch, damaged: bytes, block: int
) -> None:
    monkeypatch.setattr(arrivals_table, "BLOCK_BYTES", block)
    log = home.home / FOLDER / "1795608000000001-8000.log"
    log.write_bytes(damaged)
    assert starts(home) == []
    log.write_bytes(
        line(1).encode() + line(2).encode() + b"\n" + damaged + b"\n" + line(7).encode()
    )
    assert starts(home) == [1, 2, 7]
    maintain_arrivals(home, NOON + MINUTE)
    assert names(home) == ["1795608000000001-8000.parquet"]
    assert starts(home) == [1, 2, 7]


def test_a_file_that_fails_is_named_and_stops_no_other(home: Installation) -> None:
    (home.home / FOLDER / "1795608000000001-8000.log").mkdir()
    write(home, "1795608000000002-8000.log", line(1))
    write(home, "8000.log", line(2))
    write(home, "a.log", "x" * (ROTATE_BYTES + 1))
    with pytest.raises(WorkError) as caught:
        maintain_arrivals(home, NOON + 61 * MINUTE)
    assert "1795608000000001-8000.log (IsADirectoryError" in caught.value.what
    assert "a.log (ValueError" in caught.value.what
    left = names(home)
    assert "1795608000000002-8000.parquet" in left
    assert f"{int((NOON + 61 * MINUTE) * 1e6)}-8000.log" in left


@pytest.mark.parametrize("kept", [0, 40, -20])
def test_a_damaged_compact_file_is_left_out_and_costs_no_other(
    home: Installation, kept: int, caplog: pytest.LogCaptureFixture
) -> None:
    write(home, "1795608000000001-8000.log", line(1))
    maintain_arrivals(home, NOON + MINUTE)
    write(home, "8000.log", line(2))
    damaged = home.home / FOLDER / "1795608000000001-8000.parquet"
    damaged.write_bytes(damaged.read_bytes()[:kept])
    with caplog.at_level("WARNING", "millrace"):
        assert starts(home) == [2]
    assert f"{damaged} is damaged and is left out" in caplog.text


def test_a_damaged_file_is_removed_by_its_age(home: Installation) -> None:
    log = write(home, "1795608000000001-8000.log", line(1))
    log.with_suffix(".staged").mkdir()  # so that it cannot be compacted
    with pytest.raises(WorkError):
        maintain_arrivals(home, NOON + MINUTE)
    assert log.exists()
    with pytest.raises(WorkError):
        maintain_arrivals(home, NOON + 49 * 60 * MINUTE)
    assert not log.exists()


def test_the_last_line_need_not_end(home: Installation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrivals_table, "BLOCK_BYTES", 40)
    for count in (1, 2, 3):
        write(home, "8000.log", (line(1) * count).strip())
        assert starts(home) == [1] * count


def test_nothing_is_recorded_yet(home: Installation) -> None:
    assert starts(home) == []
    write(home, "8000.log", "")
    assert starts(home) == []


def test_a_compacted_file_says_the_same_and_is_smaller(home: Installation) -> None:
    text = "".join(line(each / 7, rows=1 + each % 3) for each in range(20_000))
    log = write(home, "8000.log", text)
    before = read_arrivals(home, ("m",), NOON, NOON + 1e4)
    rotate(home, log, NOON + MINUTE)
    assert names(home) == [f"{int((NOON + MINUTE) * 1e6)}-8000.log", "8000.log"]
    assert starts(home) == [pytest.approx(each) for each in before.times - NOON]
    maintain_arrivals(home, NOON + 2 * MINUTE)
    (compacted,) = (home.home / FOLDER).glob("*.parquet")
    assert compacted.stat().st_size < len(text) / 4
    assert compacted.stat().st_mode & 0o777 == 0o600
    after = read_arrivals(home, ("m",), NOON, NOON + 1e4)
    for name, values in vars(before).items():
        assert (getattr(after, name) == values).all(), name


def test_wrong_requests_take_no_room_once_compacted(home: Installation) -> None:
    """A flood of names of models that do not exist would push out those that answered."""
    flood = "".join(line(2, f"no{each}", "http", rest="9 850 404 .") for each in range(10_000))
    good = line(1) + line(3, "m", "http", rest="9 850 200 .") + line(4, rest="9 850 14 .")
    log = write(home, "8000.log", flood + line(5, rest="9 850 5 .") + good)
    rotate(home, log, NOON + MINUTE)
    maintain_arrivals(home, NOON + 2 * MINUTE)
    (compacted,) = (home.home / FOLDER).glob("*.parquet")
    assert compacted.stat().st_size < 5_000
    assert starts(home) == [1, 3, 4]


def test_what_was_compacted_is_not_counted_twice(home: Installation) -> None:
    log = write(home, "8000.log", line(1))
    rotate(home, log, NOON + MINUTE)
    (rotated,) = (home.home / FOLDER).glob("*-8000.log")
    text = rotated.read_text()
    maintain_arrivals(home, NOON + 2 * MINUTE)
    rotated.write_text(text)  # as if it had been killed before it removed the log
    assert starts(home) == [1]
    maintain_arrivals(home, NOON + 3 * MINUTE)
    assert not rotated.exists()
    assert starts(home) == [1]


def test_of_too_many_requests_the_newest_are_read(home: Installation) -> None:
    for number in range(3):
        log = write(home, "8000.log", line(number) * 10)
        rotate(home, log, NOON + MINUTE + number)
    log.write_text(line(3) * 10)
    found = read_arrivals(home, ("m",), NOON, NOON + 1e4, most=15)
    assert sorted(set((found.times - NOON).tolist())) == [2, 3]
    assert len(found.times) == 20


def test_a_file_with_two_names_is_counted_once(home: Installation) -> None:
    log = write(home, "8000.log", line(1))
    log.with_name("1795608000000001-8000.log").hardlink_to(log)
    assert starts(home) == [1]


def test_a_file_is_rotated_when_it_is_large_or_old(home: Installation) -> None:
    log = write(home, "8000.log", line(0))
    maintain_arrivals(home, NOON + 59 * MINUTE)
    assert names(home) == ["8000.log"]
    maintain_arrivals(home, NOON + 61 * MINUTE)
    assert len(names(home)) == 2
    log.write_text(line(0) * (ROTATE_BYTES // len(line(0)) + 1))
    maintain_arrivals(home, NOON + 62 * MINUTE)
    assert len(names(home)) == 3  # the first one is compacted


def test_a_file_that_is_being_written_stays_as_it_is(home: Installation) -> None:
    log = write(home, "1795608000000001-8000.log", line(1))
    with log.open("a"):
        assert is_written(log, age=1e6)
        maintain_arrivals(home, NOON + MINUTE)
        assert log.exists()
    maintain_arrivals(home, NOON + MINUTE)
    assert not log.exists()
    assert starts(home) == [1]


def test_old_files_and_those_beyond_the_size_are_removed(home: Installation) -> None:
    for hour in range(5):
        name = f"{int((NOON + 3600 * hour) * 1e6)}-8000.parquet"
        write(home, name, "x" * 400_000)
    write(home, "8000.log", "x" * 400_000)
    now = NOON + 5 * 3600
    remove_old(kept(home, hours=4.5), now)
    assert len(names(home)) == 5  # the first is five hours old
    remove_old(kept(home, megabytes=1.3), now)
    hours = [at for at in map(rotated_at, map(Path, names(home))) if at is not None]
    assert [(at - NOON) / 3600 for at in hours] == [3, 4]
    remove_old(kept(home, hours=0), now)
    assert names(home) == []


def kept(home: Installation, **limits: float) -> Installation:
    return Installation(home.home, "", "", arrivals_kept=ArrivalsKept(**limits))
