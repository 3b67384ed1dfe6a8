"""The command line that every conversion has, and the layers that it quantizes."""

import logging
import sys
import warnings
from argparse import ArgumentParser
from pathlib import Path

import onnx


def parser(purpose: str | None, *, calibrated: bool = False) -> ArgumentParser:
    """Return a parser that takes the file to convert and the file to write.

    Args:
        purpose: what the program does.
        calibrated: whether it needs rows of the train split too.
    """
    # What is no fault of the model is not for the reader of a refusal.
    warnings.simplefilter("ignore")
    logging.disable(logging.ERROR)
    made = ArgumentParser(description=purpose)
    made.add_argument("source", type=Path, help="the model to convert")
    made.add_argument("target", type=Path, help="where to write")
    if calibrated:
        made.add_argument("--calibration", type=Path, required=True, help="batches, an npz")
    return made


HEAVY = ["Conv", "Gemm", "MatMul"]
"""The preprocessing and the softmax stay in float: one scale for all columns would flatten raw
features of different ranges.
"""


def require_layers(source: Path, kinds: list[str]) -> None:
    """End the program with the reason unless the model has a layer of these kinds with weights."""
    graph = onnx.load(source).graph
    weights = {initializer.name for initializer in graph.initializer}
    if not any(n.op_type in kinds and weights & set(n.input) for n in graph.node):
        sys.exit(
            f"nothing in the model can be quantized: it has no {', '.join(kinds)} with weights"
        )
