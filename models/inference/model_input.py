"""The one input tensor of a model's ONNX graph."""

from dataclasses import dataclass

import numpy as np

from millrace.models.common.arrays import Array

FEATURES = "features"
INPUT_IDS = "input_ids"
EXAMPLE_TOKENS = 8


@dataclass(frozen=True)
class ModelInput:
    """Name, type and shape of the input tensor, `[rows, width]`.

    Attributes:
        name: `features`, float32; or `input_ids`, the int64 tokens of a text.
        width: values per row; for a text, the most tokens.
        padding: id of the token that pads texts to the longest of a batch; None if there is no
            text.
    """

    name: str
    width: int
    padding: int | None = None

    def blank(self, rows: int) -> Array:
        """Return rows `[rows, width]` of zeros, or of padding tokens."""
        if self.padding is None:
            return np.zeros((rows, self.width), dtype=np.float32)
        return np.full((rows, self.width), self.padding, dtype=np.int64)

    def example(self, rows: int) -> Array:
        """Return rows that any model with this input can answer; texts are short."""
        if self.padding is None:
            return self.blank(rows)
        token = 0 if self.padding != 0 else 1
        return np.full((rows, min(self.width, EXAMPLE_TOKENS)), token, dtype=np.int64)

    def lengths(self, rows: Array) -> Array:
        """Return the length of each row without the padding at its end, int64 `[rows]`."""
        if self.padding is None:
            return np.full(len(rows), rows.shape[1])
        is_token = rows != self.padding
        last = rows.shape[1] - is_token[:, ::-1].argmax(axis=1)
        return np.where(is_token.any(axis=1), last, 0)

    def trimmed(self, rows: Array) -> Array:
        """Return the rows without the last columns that are padding in every row."""
        if self.padding is None:
            return rows
        return rows[:, : max(int(self.lengths(rows).max(initial=1)), 1)]
