from pathlib import Path

import numpy as np
import pytest

from millrace.export.onnx import answer_split as module
from millrace.export.onnx.answer_split import (
    SAMPLE_ROWS,
    SplitRows,
    answer_split,
    answers_file,
    read_answers,
)
from millrace.models.inference.model_input import ModelInput

PIXELS = ModelInput("features", 2)
TOKENS = ModelInput("input_ids", 5, padding=0)


class Model:
    """A model that remembers the sizes of its batches.

    Args:
        leak: how much an answer depends on the other rows of its batch.
    """

    def __init__(self, leak: float = 0.0) -> None:
        self.leak = leak
        self.sizes: list[int] = []

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        self.sizes.append(len(rows))
        sums = rows.sum(axis=1, keepdims=True).astype(np.float32)
        return sums + np.float32(self.leak * sums.max()) if self.leak else sums


def split(folder: Path, count: int, read: ModelInput = PIXELS, batch_rows: int = 64) -> SplitRows:
    generator = np.random.default_rng(0)
    if read.padding is None:
        rows = generator.uniform(size=(count, read.width)).astype(np.float32)
    else:
        rows = generator.integers(1, 9, (count, read.width))
        rows[np.arange(read.width) >= generator.integers(1, read.width + 1, count)[:, None]] = 0
    np.save(folder / "test.npy", rows)
    return SplitRows(folder / "test.npy", read, batch_rows)


def answered(made: SplitRows, model: Model, **options: bool) -> tuple[int, np.ndarray, np.ndarray]:
    """Return the rows in serving's batches, the answers, and the sums of the rows."""
    path = made.file.with_name("m.onnx")
    count = answer_split(made, model, answers_file(path), **options)
    return count, read_answers(path), np.load(made.file).sum(axis=1, keepdims=True)


@pytest.mark.parametrize("read", [PIXELS, TOKENS])
def test_a_small_split_is_answered_as_in_serving(tmp_path: Path, read: ModelInput) -> None:
    model = Model()
    count, answers, sums = answered(split(tmp_path, 150, read), model)
    np.testing.assert_allclose(answers, sums, rtol=1e-6)
    assert (count, model.sizes) == (150, [64, 64, 22])


@pytest.mark.parametrize("read", [PIXELS, TOKENS])
def test_a_large_one_in_large_batches(tmp_path: Path, read: ModelInput) -> None:
    model = Model()
    count, answers, sums = answered(split(tmp_path, 20_000, read), model)
    np.testing.assert_allclose(answers, sums, rtol=1e-6)
    assert SAMPLE_ROWS - 64 < count <= SAMPLE_ROWS
    assert model.sizes.count(64) <= SAMPLE_ROWS // 64
    assert len(model.sizes) < 20_000 // 64


def test_unless_answers_depend_on_the_batch(tmp_path: Path) -> None:
    model = Model(leak=0.01)
    count, answers, sums = answered(split(tmp_path, 20_000), model)
    assert count == 20_000
    first = sums[:64]
    np.testing.assert_allclose(answers[:64], first + 0.01 * first.max(), rtol=1e-6)


def test_an_engine_gets_no_other_batches(tmp_path: Path) -> None:
    model = Model()
    count, _, _ = answered(split(tmp_path, 20_000), model, only_serving=True)
    assert (count, max(model.sizes)) == (20_000, 64)


def test_the_batches_are_those_of_serving_in_every_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PART_ROWS", 100)
    model = Model(leak=0.01)
    answered(split(tmp_path, 5000, batch_rows=48), model)
    assert model.sizes[-105:] == [*[48] * 104, 5000 - 104 * 48]


def test_the_sample_is_spread_over_the_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PART_ROWS", 6400)
    made = split(tmp_path, 20_000)
    starts = [
        np.flatnonzero((np.load(made.file) == batch[0]).all(axis=1))[0] for batch in made.sample()
    ]
    assert (starts[0], starts[-1]) == (0, 64 * (20_000 // 64))
    assert np.diff(starts).max() < 1000


def test_answers_that_are_no_numbers_are_kept_for_the_gates(tmp_path: Path) -> None:
    made = split(tmp_path, 5000)
    rows = np.load(made.file)
    rows[4000] = np.nan
    np.save(made.file, rows)
    _, answers, _ = answered(made, Model())
    assert np.flatnonzero(np.isnan(answers[:, 0])).tolist() == [4000]
