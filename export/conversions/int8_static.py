"""int8 weights and activations, their ranges taken from rows of the train split (QDQ, S8S8)."""

import tempfile
from collections.abc import Iterator, Sequence
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

from . import batches
from .arguments import parser
from .layers import HEAVY, require_layers

METHODS = {
    "minmax": CalibrationMethod.MinMax,
    "entropy": CalibrationMethod.Entropy,
    "percentile": CalibrationMethod.Percentile,
}


class Rows(CalibrationDataReader):  # type: ignore[misc]
    """Hands calibration batches to onnxruntime, once."""

    def __init__(self, path: Path) -> None:
        self._batches: Iterator[dict[str, Any]] = batches.read(path)

    def get_next(self) -> dict[str, Any] | None:
        """Return the next feed, or None at the end."""
        return next(self._batches, None)


def quantize(
    source: Path, target: Path, calibration: Path, method: str, keep: tuple[str, ...] = ()
) -> None:
    """Prepare a model, and quantize its heavy layers."""
    with tempfile.TemporaryDirectory() as folder:
        prepared = Path(folder) / "prepared.onnx"
        quant_pre_process(str(source), str(prepared), skip_symbolic_shape=True)
        quantize_prepared(prepared, target, calibration, method, keep=keep)


def quantize_prepared(
    source: Path,
    target: Path,
    calibration: Path,
    method: str,
    *,
    keep: Sequence[str] = (),
    only: Sequence[str] | None = None,
) -> None:
    """Quantize the heavy layers of a model whose shapes are inferred, per channel.

    Weights have 7 bits: x86 processors without VNNI add pairs of products in 16 bits, which 8 bits
    overflow, so the answers would be other ones there (ONNX Runtime's guide to quantization).

    Args:
        source: the float32 model, prepared.
        target: where to write.
        calibration: batches of rows of the train split.
        method: how a range is taken from what was seen: minmax, entropy or percentile.
        keep: names of nodes that stay in float.
        only: names of the nodes that do not; None for all others.
    """
    quantize_static(
        str(source),
        str(target),
        Rows(calibration),
        quant_format=QuantFormat.QDQ,
        op_types_to_quantize=HEAVY,
        nodes_to_exclude=list(keep),
        nodes_to_quantize=None if only is None else list(only),
        per_channel=True,
        reduce_range=True,
        activation_type=QuantType.QInt8,
        weight_type=QuantType.QInt8,
        calibrate_method=METHODS[method],
        extra_options={"OpTypesToExcludeOutputQuantization": ["Gemm", "MatMul"]},
    )


def main() -> None:
    """Convert one file."""
    made = parser(__doc__, calibrated=True)
    made.add_argument("--method", choices=sorted(METHODS), default="minmax")
    made.add_argument("--keep", nargs="*", default=(), help="nodes that stay in float")
    given = made.parse_args()
    require_layers(given.source, HEAVY)
    quantize(given.source, given.target, given.calibration, given.method, tuple(given.keep))


if __name__ == "__main__":
    main()
