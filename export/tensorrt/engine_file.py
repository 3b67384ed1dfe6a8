"""What a TensorRT engine is built for, and the name of its file."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from millrace.models.common.hardware import EngineFingerprint
from millrace.models.inference.model_input import ModelInput

SUFFIX = ".plan"


@dataclass(frozen=True)
class Sizes:
    """The sizes that one dynamic dimension of a model takes in serving.

    Attributes:
        smallest: so largest.
        best: the size that kernels are chosen for.
    """

    smallest: int
    best: int
    largest: int


Axes = Mapping[str, Sizes]
"""The sizes of each dynamic dimension, by its name in the graph: one optimization profile."""


def axes_of(read: ModelInput, largest_batch: int, golden_rows: int) -> Axes:
    """Return the sizes of a model's dynamic dimensions: the batch, and of a text its tokens.

    Args:
        read: the model's input.
        largest_batch: serving's, which kernels are chosen for.
        golden_rows: rows of the golden batch, which is asked as a whole.
    """
    axes = {"rows": Sizes(1, largest_batch, max(largest_batch, golden_rows))}
    if read.padding is not None:
        axes["tokens"] = Sizes(1, read.width, read.width)
    return axes


def file_of(folder: Path, name: str, ties: EngineFingerprint) -> Path:
    """Return where the engine of a variant goes: its name says what it runs with."""
    return folder / f"{name}.{ties.slug}{SUFFIX}"


def options_of(axes: Axes) -> tuple[str, ...]:
    """Return the options of the program that builds an engine for these dynamic dimensions."""
    words = (f"{n}={s.smallest}:{s.best}:{s.largest}" for n, s in axes.items())
    return tuple(word for axis in words for word in ("--axis", axis))


def timing_cache(folder: Path, ties: EngineFingerprint) -> Path:
    """Return the file that makes the next build in the same place quicker."""
    return folder / f"{ties.slug}.timing"
