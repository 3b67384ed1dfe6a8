"""Answers a test split in large batches, or in batches of serving's size if that matters.

A variant's answer may depend on the other rows of its batch: dynamic int8 takes its ranges from the
whole batch. So a sample is answered both ways. Where the answers are the same, large batches are
used, which are faster; otherwise every row is answered as in serving.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from millrace.export.onnx.graph_certificate import largest_difference
from millrace.models.common.array_file import ArrayWriter, read_parts, rows_of
from millrace.models.common.arrays import Array, spread
from millrace.models.inference.model_input import ModelInput
from millrace.models.inference.row_batches import PART_ROWS, answer_rows

SAMPLE_ROWS = 4096
"""Size of the sample, in rows that are evenly spread; a smaller split is answered as in serving."""
TOLERANCE = 1e-5
"""Largest difference of equal answers, as a share of the largest answer, or of 1 if it is less."""

Answer = Callable[[Array], Array]


def answers_file(model: Path) -> Path:
    """Return the npy file with a measured model's answers to the test split."""
    return model.with_name(f"{model.name}.answers.npy")


def read_answers(model: Path) -> Array:
    """Return a measured model's answers to the test split, `[rows, outputs]`, memory-mapped."""
    answers: Array = np.load(answers_file(model), mmap_mode="r")
    return answers


@dataclass(frozen=True)
class SplitRows:
    """The rows of a test split in a file.

    Attributes:
        file: npy file, `[rows, width]`.
        read: the model's input.
        batch_rows: number of rows of a full batch in serving.
    """

    file: Path
    read: ModelInput
    batch_rows: int

    def parts(self) -> Iterator[Array]:
        """Yield all rows, in parts that full batches fit into."""
        return read_parts(self.file, -(-PART_ROWS // self.batch_rows) * self.batch_rows)

    def batches(self, rows: Array) -> Iterator[Array]:
        """Yield rows in batches of serving's size."""
        for start in range(0, len(rows), self.batch_rows):
            yield rows[start : start + self.batch_rows]

    def sample(self) -> list[Array]:
        """Return about `SAMPLE_ROWS` rows in batches of serving's size, evenly spread."""
        parts = list(self.parts())
        of_part = max(SAMPLE_ROWS // self.batch_rows // len(parts), 1)
        return [
            batches[number]
            for batches in (list(self.batches(part)) for part in parts)
            for number in spread(len(batches), of_part)
        ]


def answer_split(
    split: SplitRows, answer: Answer, target: Path, *, only_serving: bool = False
) -> int:
    """Write the answers to all rows to an npy file, `[rows, outputs]`.

    Args:
        split: the rows.
        answer: the model.
        target: the file to write.
        only_serving: whether to use no other batches than those of serving.

    Returns:
        The number of rows that were answered in batches of serving's size.
    """
    rows = rows_of(split.file)
    sample = split.sample()
    as_served = only_serving or rows <= SAMPLE_ROWS or _differs(split, answer, sample)
    with ArrayWriter(target, rows) as writer:
        for part in split.parts():
            if as_served:
                for batch in split.batches(part):
                    writer.append(answer(split.read.trimmed(batch)))
            else:
                writer.append(answer_rows(answer, part, split.read))
    return rows if as_served else sum(map(len, sample))


def _differs(split: SplitRows, answer: Answer, sample: list[Array]) -> bool:
    """Return whether large batches give other answers to the sample than batches of serving."""
    served = np.concatenate([answer(split.read.trimmed(batch)) for batch in sample])
    large = answer_rows(answer, np.concatenate(sample), split.read)
    scale = max(1.0, float(np.abs(served).max()))
    return not largest_difference(large, served) <= TOLERANCE * scale
