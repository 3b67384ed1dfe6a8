"""The one tensor that a model's graph reads."""

from dataclasses import dataclass

import numpy as np

from millrace.models.common.arrays import Array

FEATURES = "features"
INPUT_IDS = "input_ids"
SEEN = 8
"""Tokens of an example row."""


@dataclass(frozen=True)
class ModelInput:
    """Name, type and shape of that tensor, `[rows, width]`.

    Attributes:
        name: `features`, float32; or `input_ids`, the int64 tokens of a text.
        width: places in a row, the most there can be for a text.
        padding: the token that fills a text up to the longest of its batch; None for no text.
    """

    name: str
    width: int
    padding: int | None = None

    def blank(self, rows: int) -> Array:
        """Return `[rows, width]` of nothing: zeros, or padding."""
        if self.padding is None:
            return np.zeros((rows, self.width), dtype=np.float32)
        return np.full((rows, self.width), self.padding, dtype=np.int64)

    def example(self, rows: int) -> Array:
        """Return rows that any model of this input can answer, a text as short ones."""
        if self.padding is None:
            return self.blank(rows)
        token = 0 if self.padding != 0 else 1
        return np.full((rows, min(self.width, SEEN)), token, dtype=np.int64)

    def lengths(self, rows: Array) -> Array:
        """Return int64 `[rows]`: the places of each row up to the last that is no padding."""
        if self.padding is None:
            return np.full(len(rows), rows.shape[1])
        taken = rows != self.padding
        last = rows.shape[1] - taken[:, ::-1].argmax(axis=1)
        return np.where(taken.any(axis=1), last, 0)

    def trimmed(self, rows: Array) -> Array:
        """Return the rows without the columns that are padding in all of them."""
        if self.padding is None:
            return rows
        return rows[:, : max(int(self.lengths(rows).max(initial=1)), 1)]
