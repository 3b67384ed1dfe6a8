"""The model that all servers serve, and the request to it."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.server import batch_of, few_digits, mlp, raw_session
from millrace.models.common.errors import WorkError

INPUTS, OUTPUTS = 64, 10
SMALL = (INPUTS, 128, OUTPUTS)


@dataclass(frozen=True)
class Question:
    """The request to all servers, and the right answer.

    Attributes:
        onnx: the model.
        row: the numbers of one row.
        answer: of ONNX Runtime in this process.
    """

    onnx: Path
    row: list[float]
    answer: list[float]

    def check(self, server: str, answer: object) -> None:
        """Compare the JSON of a server's answer with the right one.

        Raises:
            WorkError: it is another one.
        """
        found = find_numbers(answer)
        if len(found) != len(self.answer) or not np.allclose(found, self.answer, atol=1e-5):
            raise WorkError(
                f"{server} answers something else than ONNX Runtime in this process",
                seen=found,
                valid=self.answer,
            )


def find_numbers(value: object) -> list[float]:
    """Return the numbers of a JSON value, in their order."""
    if isinstance(value, dict):
        return [number for each in value.values() for number in find_numbers(each)]
    if isinstance(value, list):
        return [number for each in value for number in find_numbers(each)]
    return [float(value)] if isinstance(value, int | float) else []


def small_model(folder: Path) -> Question:
    """Write the small model into a folder."""
    onnx = mlp(folder / "small.onnx", SMALL)
    return _question(onnx)


def _question(onnx: Path) -> Question:
    row = batch_of(INPUTS, 1)["x"].round(4)
    answer = raw_session(onnx).run(None, {"x": row})[0]
    return Question(onnx, few_digits(row), answer.ravel().tolist())
