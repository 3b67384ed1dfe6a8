"""The command line that all conversions share, and the layers that they quantize."""

import logging
import sys
import warnings
from argparse import ArgumentParser
from pathlib import Path

import onnx


def parser(purpose: str | None, *, calibrated: bool = False) -> ArgumentParser:
    """Return a parser for the file to convert and the file to write.

    Args:
        purpose: description of the program.
        calibrated: whether the program needs calibration rows too.
    """
    # The program's last line on stderr is shown as the reason of a failure, so warnings are off.
    warnings.simplefilter("ignore")
    logging.disable(logging.ERROR)
    made = ArgumentParser(description=purpose)
    made.add_argument("source", type=Path, help="the model to convert")
    made.add_argument("target", type=Path, help="the file to write")
    if calibrated:
        made.add_argument(
            "--calibration", type=Path, required=True, help="npz file with calibration batches"
        )
    return made


HEAVY = ["Conv", "Gemm", "MatMul"]
"""Node types to quantize. All other nodes stay in float, such as softmax and the preprocessing. In
the preprocessing, one scale for all columns would round away raw features with small ranges.
"""


def require_layers(source: Path, kinds: list[str]) -> None:
    """Exit with a message unless the model has a node of these types with constant weights."""
    graph = onnx.load(source).graph
    weights = {initializer.name for initializer in graph.initializer}
    if not any(n.op_type in kinds and weights & set(n.input) for n in graph.node):
        sys.exit(
            f"nothing in the model can be quantized: it has no {', '.join(kinds)} with weights"
        )
