"""Which rows of a job are looked at again, and that they are those that were written."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq
import pytest

from millrace.models.data.sources.find_files import File
from millrace.models.data.sources.source import CHUNK_ROWS, Chunk
from millrace.serving.batch.commit import Partition
from millrace.serving.batch.input import input_pieces as module
from millrace.serving.batch.input.find_input import open_input
from millrace.serving.batch.input.input_pieces import ParquetPiece, Piece
from millrace.serving.batch.input.row_sample import FEW, ScoredRows, choose_rows, read_examples
from millrace.serving.batch.job import FILE_ROWS
from millrace.serving.batch.prompts.openvino_job import PromptJob

JOB = PromptJob("m", 3, "d", Path("form"), key=("id",))
FILE = File(pa.fs.LocalFileSystem(), "f", 1, 0)


@dataclass(frozen=True)
class Counted(ParquetPiece):
    """A piece that is never read."""

    def chunks(self, columns: Sequence[str]) -> Iterator[Chunk]:
        raise AssertionError(f"{self.name} is read for {columns}")


def pieces(count: int, rows: int | None) -> list[Piece]:
    return [Counted(FILE, number, 0, rows) for number in range(count)]


def rows_of(number: int, rows: int) -> np.ndarray:
    return number * FILE_ROWS + np.arange(rows)


def test_a_sample_is_spread_over_few_pieces_and_the_same_again() -> None:
    scored = [rows_of(number, 1000) for number in range(100)]
    found = choose_rows(pieces(100, 1000), scored, 64)
    assert (found == choose_rows(pieces(100, 1000), scored[::-1], 64)).all()
    assert len(found) == 64
    assert len(set(found // FILE_ROWS)) == FEW
    assert (found[0], found[-1]) == (0, 99 * FILE_ROWS + 999)


def test_of_small_pieces_more_are_read() -> None:
    found = choose_rows(pieces(100, 1), [rows_of(number, 1) for number in range(100)], 64)
    assert len(found) == 64


def test_of_a_large_piece_only_the_beginning_is_looked_at() -> None:
    found = choose_rows(pieces(1, None), [rows_of(0, 4 * CHUNK_ROWS)], 64)
    assert len(found) == 64
    assert found[-1] == CHUNK_ROWS - 1


@pytest.mark.parametrize("rows", [0, 1, 5])
def test_of_few_rows_all_are_the_sample(rows: int) -> None:
    assert choose_rows(pieces(1, None), [rows_of(0, rows)], 64).tolist() == list(range(rows))


def test_rows_without_an_answer_are_not_in_it() -> None:
    scored = np.array([2, 3, 7, 2 * FILE_ROWS + 1])
    assert choose_rows(pieces(3, 10), [scored[2:], scored[:2]], 64).tolist() == scored.tolist()


def written(folder: Path, *files: Sequence[int]) -> tuple[Partition, dict[str, pa.Table]]:
    """Write that each `_row` was answered by its own number."""
    partition = Partition(str(folder / "table"), "date", "2026-01-05", "job")
    Path(partition.folder.uri).mkdir(parents=True)
    found = {}
    for number, rows in enumerate(files):
        texts = [str(row) for row in rows]
        table = pa.table({"_row": list(rows), "_key": texts, "completion": texts})
        pq.write_table(table, file := f"{partition.folder.uri}/{number}.parquet")
        found[file] = table.select(["_row", "_key"])
    return partition, found


def test_rows_are_read_again_beside_their_answers(tmp_path: Path) -> None:
    """A line that cannot be read takes a place."""
    lines = ['{"id": 1, "prompt": "a"}', "no json", '{"id": 2, "prompt": "b"}']
    (tmp_path / "1.jsonl").write_text("\n".join(lines))
    (tmp_path / "2.jsonl").write_text(json.dumps({"id": 3, "prompt": "c"}))
    partition, files = written(tmp_path, [FILE_ROWS, 0], [2])
    scored = ScoredRows(open_input(str(tmp_path / "*.jsonl"), JOB).pieces, partition, files)
    found = list(read_examples(scored, JOB.columns, ["completion"], 64))
    told = [(each.row["prompt"][0].as_py(), each.written["completion"]) for each in found]
    assert told == [("a", "0"), ("b", "2"), ("c", str(FILE_ROWS))]
    assert [each.key for each in found] == ["0", "2", str(FILE_ROWS)]


def test_rows_of_row_groups_are_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millrace.serving.batch.input.input_pieces.PIECE_ROWS", 4)
    monkeypatch.setattr(module, "CHUNK_ROWS", 3)
    table = pa.table({"id": range(16), "prompt": [f"p{n}" for n in range(16)]})
    pq.write_table(table, tmp_path / "in.parquet", row_group_size=2)
    partition, files = written(tmp_path, range(0, 16, 3), range(1, 16, 3))
    scored = ScoredRows(open_input(str(tmp_path / "in.parquet"), JOB).pieces, partition, files)
    assert len(scored.pieces) == 4
    found = list(read_examples(scored, JOB.columns, ["completion"], 64))
    assert [each.row["prompt"][0].as_py() for each in found] == [
        f"p{row}" for row in range(16) if row % 3 < 2
    ]
    assert all(f"p{each.written['completion']}" == each.row["prompt"][0].as_py() for each in found)
