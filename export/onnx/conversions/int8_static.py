"""int8 weights and activations (QDQ); activation ranges come from rows of the train split."""

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
"""x86 processors multiply u8 activations with signed weights; ARM and GPUs need s8 activations."""
METHODS = {
    "minmax": CalibrationMethod.MinMax,
    "entropy": CalibrationMethod.Entropy,
    "percentile": CalibrationMethod.Percentile,
}


class Rows(CalibrationDataReader):  # type: ignore[misc]
    """Gives each calibration batch to onnxruntime once.

    The histogram methods (entropy, percentile) need batches of one shape.
    """

    def __init__(self, path: Path, method: str) -> None:
        all_of_them = batch_file.read(path) if method == "minmax" else batch_file.of_one_shape(path)
        self._batches: Iterator[dict[str, Any]] = iter(all_of_them)

    def get_next(self) -> dict[str, Any] | None:
        """Return the next batch, or None at the end."""
        return next(self._batches, None)


@dataclass(frozen=True)
class Ranges:
    """How activations are quantized.

    Attributes:
        method: calibration method for the ranges: minmax, entropy or percentile.
        activations: integer type, u8 or s8.
        symmetric: whether to quantize for TensorRT: zero points are 0, weights use all 8 bits, and
            the bias stays in float.
    """

    method: str = "minmax"
    activations: str = "u8"
    symmetric: bool = False


def quantize(
    source: Path, target: Path, calibration: Path, ranges: Ranges, keep: Sequence[str] = ()
) -> None:
    """Infer a model's shapes, and quantize its Conv, Gemm and MatMul layers and its embeddings.

    Args:
        source: the float32 model.
        target: file to write.
        calibration: npz file with calibration batches.
        ranges: how activations are quantized.
        keep: names of nodes that stay in float.
    """
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
    """Quantize the Conv, Gemm and MatMul layers of a model with inferred shapes, per channel.

    Weights have 7 bits. x86 processors without VNNI add pairs of products in 16 bits. With 8-bit
    weights these sums overflow, and the outputs are wrong (ONNX Runtime's guide to quantization).
    Symmetric weights have 8 bits, because they are for GPUs, where these sums do not overflow.

    Args:
        source: the float32 model, after `quant_pre_process`.
        target: file to write.
        calibration: npz file with batches of rows of the train split.
        ranges: how activations are quantized.
        keep: names of nodes that stay in float.
        only: names of the only nodes to quantize; None for all.
        seen: file that caches the calibrated ranges between calls; None for no cache.
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
            "MatMulConstBOnly": True,  # products of two activations (attention) stay in float
            "ActivationSymmetric": ranges.symmetric,
            "QuantizeBias": not ranges.symmetric,
        },
    )


def with_ranges(made: ArgumentParser) -> ArgumentParser:
    """Add the options for the quantization of activations to a parser."""
    made.add_argument("--method", choices=sorted(METHODS), default="minmax")
    made.add_argument("--activations", choices=sorted(ACTIVATIONS), default="u8")
    return made


def main() -> None:
    """Convert one file."""
    made = with_ranges(parser(__doc__, calibrated=True))
    made.add_argument("--keep", nargs="*", default=(), help="names of nodes that stay in float")
    made.add_argument("--symmetric", action="store_true", help="quantize for TensorRT")
    given = made.parse_args()
    require_layers(given.source, HEAVY)
    ranges = Ranges(given.method, given.activations, given.symmetric)
    quantize(given.source, given.target, given.calibration, ranges, given.keep)


if __name__ == "__main__":
    main()
