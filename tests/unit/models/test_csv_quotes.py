"""A stray quote that swallows rows makes a bad row, and not a good one with a long text."""

import io
import random
from pathlib import Path

import pytest

from millrace.models.config.dataset_spec import DatasetSpec
from millrace.models.data.sources import csv_quotes, csv_source
from millrace.models.data.sources.csv_quotes import REASON, find_swallowing
from millrace.models.data.sources.open_source import open_source
from millrace.models.data.sources.source import Chunk, Unreadable


def read(folder: Path, rows: list[str], name: str = "r.csv") -> list[Chunk]:
    (folder / name).write_text("\n".join(["id,note,x", *rows]) + "\n")
    spec = DatasetSpec.model_validate({"source": name, "target": "x"})
    return list(open_source(spec, folder).chunks())


def make_rows(**changed: str) -> list[str]:
    return [changed.get(f"r{n}", f"{n},n{n},{n}") for n in range(20)]


@pytest.mark.parametrize("block", [60, csv_source.BLOCK_BYTES])
def test_the_record_with_swallowed_rows_is_unreadable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr(csv_source, "BLOCK_BYTES", block)
    rows = make_rows(r2="two cells,2", r10='10,"said hello,10', r12='12,bye"x,12', r17="a,b,c,d")
    chunks = read(tmp_path, rows)
    lines = [line for chunk in chunks for line in chunk.unreadable]
    assert [line.reason for line in lines] == [
        "line has 2 cells, not 3",
        REASON,
        "line has 4 cells, not 3",
    ]
    assert lines[1].line == "10,said hello,10\n11,n11,11\n12,byex,12"
    assert sum(chunk.line_breaks for chunk in chunks) == 0
    places = [chunk.before + int(n) for chunk in chunks for n in chunk.unreadable_positions()]
    assert places == [2, 10, 15]
    ids = [row["id"] for chunk in chunks for row in chunk.rows.to_pylist()]
    assert ids == [str(n) for n in range(20) if n not in (2, 10, 11, 12, 17)]
    places += [chunk.before + int(n) for chunk in chunks for n in chunk.row_positions()]
    assert sorted(places) == list(range(18))


def test_text_of_several_lines_stays_and_is_counted(tmp_path: Path) -> None:
    rows = make_rows(r3='3,"Dear all,\n""hi"",\nbye",3', r4='4,"one"two,4', r5='5,5" pipe,5')
    [chunk] = read(tmp_path, rows)
    assert (chunk.rows.num_rows, chunk.unreadable, chunk.line_breaks) == (20, (), 1)
    notes = chunk.rows["note"].to_pylist()[3:6]
    assert notes == ['Dear all,\n"hi",\nbye', "onetwo", '5" pipe']


def test_a_file_without_line_breaks_in_cells_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(csv_quotes, "find_swallowing", fail)
    rows = make_rows(r1='1,"a, b",1', r2='2,"no\ndelimiter",2')
    assert read(tmp_path, rows)[0].rows.num_rows == 20


def test_tabs_separate_cells_of_tsv(tmp_path: Path) -> None:
    rows = ["a,b\t1\t1", '10\t"said, hello\t10', '12\tbye"x\t12', "c\t1\t1"]
    (tmp_path / "r.tsv").write_text("\n".join(["id\tnote\tx", *rows]) + "\n")
    spec = DatasetSpec.model_validate({"source": "r.tsv", "target": "x"})
    [chunk] = open_source(spec, tmp_path).chunks()
    assert chunk.rows.num_rows == 2
    assert [line.before for line in chunk.unreadable] == [1]
    assert isinstance(chunk.unreadable[0], Unreadable)


def by_states(text: str) -> list[str]:
    """Return the cells to be found, by a machine that looks at one character after the other."""
    found, cell, state, is_broken, is_bad = [], "", "start", False, False
    place = 0
    while place < len(text):
        sign = text[place]
        if state == "start" and sign == '"':
            state = "quoted"
        elif state == "quoted" and text[place : place + 2] == '""':
            cell, place = cell + '"', place + 1
        elif state == "quoted" and sign == '"':
            state = "closed"
        elif state != "quoted" and sign in ",\n":
            found += [cell] if is_broken and is_bad else []
            cell, state, is_broken, is_bad = "", "start", False, False
        else:
            is_broken |= state == "quoted" and sign == "\n"
            is_bad |= state == "closed"
            cell, state = cell + sign, "open" if state == "start" else state
        place += 1
    return found


@pytest.mark.parametrize("seed", range(20))
def test_cells_are_found_as_by_a_machine_of_states(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    chance = random.Random(seed)
    for _ in range(200):
        monkeypatch.setattr(csv_quotes, "READ_BYTES", chance.randint(1, 12))
        text = "".join(chance.choice('a",\n"b') for _ in range(chance.randint(1, 40))) + "\n"
        found = [cell.decode() for cell in find_swallowing(io.BytesIO(text.encode()), ",")]
        assert found == by_states(text), text
