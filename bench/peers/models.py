"""The two models that all servers serve: a small one, and one that takes about 5 ms a row."""

import statistics
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.measure import time_calls
from bench.server import batch_of, few_digits, mlp, raw_session
from millrace.models.common.errors import WorkError

INPUTS, OUTPUTS = 64, 10
SMALL = (INPUTS, 128, OUTPUTS)
SLOW_MS = 5.0
LAYERS, FIRST_WIDTH, STEP = 3, 2048, 64
"""Square layers of the slow model, the width that is tried first, and what it is a multiple of."""
CLOSE, TRIES = 0.1, 4
"""The slow model's time may be off by this share; after so many tries it is what it is."""
BATCH = 32
SECONDS = 0.5


@dataclass(frozen=True)
class Question:
    """The request to all servers, and the right answer.

    Attributes:
        onnx: the model.
        row: the numbers of one row.
        answer: of ONNX Runtime in this process.
        about: the model, in words.
    """

    onnx: Path
    row: list[float]
    answer: list[float]
    about: str = ""

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
    return _question(onnx, "a small model")


def slow_model(folder: Path) -> Question:
    """Write a model into a folder whose row takes about 5 ms of one thread on this machine.

    Its width is found by trying: the time grows faster than the weights, as caches end.
    """
    onnx, width, took = folder / "slow.onnx", FIRST_WIDTH, SLOW_MS
    for _ in range(TRIES):
        width = STEP * round(width * (SLOW_MS / took) ** 0.5 / STEP)
        mlp(onnx, (INPUTS, *[width] * (LAYERS + 1), OUTPUTS))
        took = _median_ms(onnx, rows=1)
        if abs(took / SLOW_MS - 1) <= CLOSE:
            break
    batch = _median_ms(onnx, BATCH)
    about = f"a model of {took:.1f} ms a row and {batch:.0f} ms for {BATCH} rows"
    return _question(onnx, f"{about}, {LAYERS} layers of {width} × {width}")


def _median_ms(onnx: Path, rows: int) -> float:
    session, feed = raw_session(onnx), batch_of(INPUTS, rows)
    time_calls(lambda: session.run(None, feed), SECONDS / 2)
    return 1e3 * statistics.median(time_calls(lambda: session.run(None, feed), SECONDS))


def _question(onnx: Path, about: str) -> Question:
    row = batch_of(INPUTS, 1)["x"].round(4)
    answer = raw_session(onnx).run(None, {"x": row})[0]
    return Question(onnx, few_digits(row), answer.ravel().tolist(), about)
