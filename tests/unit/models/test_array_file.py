from pathlib import Path

import numpy as np
import pytest

from millrace.models.common.array_file import ArrayWriter, read_parts, rows_of


@pytest.mark.parametrize("values", [np.arange(7), np.arange(14, dtype=np.float32).reshape(7, 2)])
def test_what_is_written_in_parts_is_one_array(tmp_path: Path, values: np.ndarray) -> None:
    file = tmp_path / "a.npy"
    with ArrayWriter(file, 7) as writer:
        for part in (values[:3], values[3:3], values[3:]):
            writer.append(part)
    found = np.load(file, mmap_mode="r")
    np.testing.assert_array_equal(found, values)
    assert found.dtype == values.dtype
    assert rows_of(file) == 7


def test_a_first_part_without_rows_is_followed_by_others(tmp_path: Path) -> None:
    file = tmp_path / "a.npy"
    with ArrayWriter(file, 2) as writer:
        writer.append(np.empty((0, 3), np.float32))
        writer.append(np.ones((2, 3), np.float32))
    np.testing.assert_array_equal(np.load(file), np.ones((2, 3)))


def test_rows_that_were_not_announced_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="than 2 rows"), ArrayWriter(tmp_path / "a.npy", 2) as made:
        made.append(np.ones(3))


def test_rows_that_are_missing_at_the_end_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="1 of 2 rows"), ArrayWriter(tmp_path / "a.npy", 2) as made:
        made.append(np.ones(1))


@pytest.mark.parametrize("values", [np.arange(7), np.arange(14, dtype=np.float32).reshape(7, 2)])
@pytest.mark.parametrize("rows", [1, 3, 7, 100])
def test_parts_are_the_array(tmp_path: Path, values: np.ndarray, rows: int) -> None:
    np.save(tmp_path / "a.npy", values)
    parts = list(read_parts(tmp_path / "a.npy", rows))
    assert max(map(len, parts)) <= rows
    np.testing.assert_array_equal(np.concatenate(parts), values)
