"""Batches of named arrays in one npz file, for calibration and for measurements."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

Batch = Mapping[str, Any]
"""One array for each input of the model, `[rows, …]`."""


def write(path: Path, batches: Iterable[Batch]) -> None:
    """Write batches in order; `batches` may be empty."""
    arrays = {
        f"{number:06d}:{name}": array
        for number, batch in enumerate(batches)
        for name, array in batch.items()
    }
    with path.open("wb") as file:
        np.savez(file, **arrays)


def read(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the batches in the order they were written."""
    with np.load(path, allow_pickle=False) as file:
        numbers = sorted({name.partition(":")[0] for name in file.files})
        for number in numbers:
            members = [name for name in file.files if name.startswith(f"{number}:")]
            yield {name.partition(":")[2]: file[name] for name in members}


def of_one_shape(path: Path) -> list[dict[str, Any]]:
    """Return the batches with the most rows, cut to the width of the narrowest of these batches.

    Then all arrays of one input have the same shape.
    """
    kept = list(read(path))
    rows = max((len(array) for batch in kept for array in batch.values()), default=0)
    full = [batch for batch in kept if all(len(array) == rows for array in batch.values())]
    widths = {name: min(batch[name].shape[1] for batch in full) for name in full[0]} if full else {}
    return [{name: array[:, : widths[name]] for name, array in batch.items()} for batch in full]
