"""What is left to do after a dead run."""

from typing import Any

import cloudpickle  # type: ignore[import-untyped,unused-ignore]
import numpy as np
import pyarrow.fs

from millrace.models.data.sources.find_files import File
from millrace.serving.batch.input.input_pieces import TextPiece
from millrace.serving.batch.input.reader import RemainingRows, find_remaining, load_of
from millrace.serving.batch.job import FILE_ROWS

FILE = File(pyarrow.fs.LocalFileSystem(), "/in.csv", 100, None)
PIECES = tuple(TextPiece(FILE, number) for number in range(3))


def rows(*spans: tuple[int, int, int]) -> np.ndarray:
    """Return the places of the rows from one to another of some files."""
    parts = [np.arange(first, last) + file * FILE_ROWS for file, first, last in spans]
    return np.concatenate([np.empty(0, np.int64), *parts])


def test_of_a_new_job_everything_is_left() -> None:
    left = find_remaining(PIECES, {}, rows())
    assert [each.piece for each in left] == list(PIECES)
    assert not any(len(each.done) for each in left)


def test_a_piece_whose_rows_are_all_done_is_not_read_again() -> None:
    counted = {PIECES[0].name: 5, PIECES[1].name: 5}
    left = find_remaining(PIECES, counted, rows((0, 0, 5), (1, 0, 4)))
    assert [each.piece.number for each in left] == [1, 2]
    assert left[0].done.tolist() == rows((1, 0, 4)).tolist()


def test_a_piece_that_was_not_read_to_its_end_is_read_again() -> None:
    (again, *_) = find_remaining(PIECES, {}, rows((0, 0, 5)))
    assert again.piece.number == 0
    assert len(again.done) == 5


def test_a_task_with_many_done_rows_is_small_and_has_the_name_that_ray_asks_for() -> None:
    """Ray 2.60 asks a task of more than 1 MiB for its function's name, in order to warn."""
    count = 2_000_000
    done = np.delete(np.arange(count) + FILE_ROWS, [7, 1_000_000])
    left = find_remaining(PIECES[1:2], {}, done)
    job: Any = None
    (task,) = RemainingRows("in.csv", left, job, job).get_read_tasks(4)
    assert task.read_fn.__name__ == "_read_pieces"
    sent = cloudpickle.dumps(task)
    assert len(sent) < 2**20
    (again,) = cloudpickle.loads(sent).read_fn.args[1]
    assert again.piece == left[0].piece
    assert again.done.dtype == np.int64
    assert np.array_equal(again.done, done)


def test_an_empty_piece_is_done_once_it_was_read() -> None:
    assert find_remaining(PIECES[:1], {PIECES[0].name: 0}, rows()) == ()


def test_the_load_is_what_is_left() -> None:
    load = load_of(find_remaining(PIECES, {PIECES[0].name: 5}, rows((0, 0, 5))), 3)
    assert (load.pieces, load.rows, load.bytes, load.actors) == (2, None, 200, 3)
