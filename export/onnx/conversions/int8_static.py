"""int8 weights and activations, their ranges taken from rows of the train split (QDQ)."""

import tempfile
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnxruntime.quantization import (
    CalibrationDataReader,
    CalibrationMethod,
    QuantFormat,
    QuantType,
    quantize_static,
)
from onnxruntime.quantization.shape_inference import quant_pre_process

from . import batch_file
from .arguments import HEAVY, parser, require_layers
from .embeddings import quantize_tables

ACTIVATIONS = {"u8": QuantType.QUInt8, "s8": QuantType.QInt8}
"""u8 is what x86 processors multiply with signed weights; ARM and GPUs take s8."""
METHODS = {
    "minmax": CalibrationMethod.MinMax,
    "entropy": CalibrationMethod.Entropy,
    "percentile": CalibrationMethod.Percentile,
}


class Rows(CalibrationDataReader):  # type: ignore[misc]
    """Hands calibration batches to onnxruntime, once.

    Its histograms take batches of one shape only.
    """

    def __init__(self, path: Path, method: str) -> None:
        all_of_them = batch_file.read(path) if method == "minmax" else batch_file.of_one_shape(path)
        self._batches: Iterator[dict[str, Any]] = iter(all_of_them)

    def get_next(self) -> dict[str, Any] | None:
        """Return the next feed, or None at the end."""
        return next(self._batches, None)


@dataclass(frozen=True)
class Ranges:
    """How activations become integers.

    Attributes:
        method: how a range is taken from what was seen: minmax, entropy or percentile.
        activations: u8 or s8.
        symmetric: as TensorRT wants it: zero is zero, weights have all 8 bits, the bias is a float.
    """

    method: str = "minmax"
    activations: str = "u8"
    symmetric: bool = False


def quantize(
    source: Path, target: Path, calibration: Path, ranges: Ranges, keep: Sequence[str] = ()
) -> None:
    """Prepare a model, and quantize its heavy layers and its tables of embeddings."""
    with tempfile.TemporaryDirectory() as folder:
        prepared = Path(folder) / "prepared.onnx"
        quant_pre_process(str(source), str(prepared), skip_symbolic_shape=True)
        quantize_prepared(prepared, target, calibration, ranges, keep=keep)
    quantize_tables(target)


def quantize_prepared(
    source: Path,
    target: Path,
    calibration: Path,
    ranges: Ranges,
    *,
    keep: Sequence[str] = (),
    only: Sequence[str] | None = None,
    seen: Path | None = None,
) -> None:
    """Quantize the heavy layers of a model whose shapes are inferred, per channel.

    Weights have 7 bits: x86 processors without VNNI add pairs of products in 16 bits, which 8 bits
    overflow, so the answers would be other ones there (ONNX Runtime's guide to quantization).
    Symmetric ones are for GPUs, which have no such trouble.

    Args:
        source: the float32 model, prepared.
        target: where to write.
        calibration: batches of rows of the train split.
        ranges: how activations become integers.
        keep: names of nodes that stay in float.
        only: names of the nodes that do not; None for all others.
        seen: where the ranges are kept for the next time; None to forget them.
    """
    quantize_static(
        str(source),
        str(target),
        Rows(calibration, ranges.method),
        quant_format=QuantFormat.QDQ,
        op_types_to_quantize=HEAVY,
        nodes_to_exclude=list(keep),
        nodes_to_quantize=None if only is None else list(only),
        per_channel=True,
        reduce_range=not ranges.symmetric,
        activation_type=ACTIVATIONS[ranges.activations],
        weight_type=QuantType.QInt8,
        calibrate_method=METHODS[ranges.method],
        calibration_cache_path=seen,
        extra_options={
            "OpTypesToExcludeOutputQuantization": ["Gemm", "MatMul"],
            "MatMulConstBOnly": True,  # attention multiplies two activations: they stay in float
            "ActivationSymmetric": ranges.symmetric,
            "QuantizeBias": not ranges.symmetric,
        },
    )


def with_ranges(made: ArgumentParser) -> ArgumentParser:
    """Add the options that say how activations become integers."""
    made.add_argument("--method", choices=sorted(METHODS), default="minmax")
    made.add_argument("--activations", choices=sorted(ACTIVATIONS), default="u8")
    return made


def main() -> None:
    """Convert one file."""
    made = with_ranges(parser(__doc__, calibrated=True))
    made.add_argument("--keep", nargs="*", default=(), help="nodes that stay in float")
    made.add_argument("--symmetric", action="store_true", help="as TensorRT wants it")
    given = made.parse_args()
    require_layers(given.source, HEAVY)
    ranges = Ranges(given.method, given.activations, given.symmetric)
    quantize(given.source, given.target, given.calibration, ranges, given.keep)


if __name__ == "__main__":
    main()
