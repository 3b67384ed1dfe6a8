"""Static int8 quantization by onnxruntime: QDQ, calibrated with rows of the train split."""

import tempfile
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path

import onnx
from onnxruntime.quantization import (
    CalibrationDataReader,
    CalibrationMethod,
    QuantFormat,
    QuantType,
    quantize_static,
)
from onnxruntime.quantization.shape_inference import quant_pre_process

from export.quiet import quiet_root
from models.arrays import Array
from models.errors import WorkError
from models.features import FEATURES
from models.onnx_session import RUNTIME_ERRORS

# The layers that hold the weights and the work. The preprocessing and the softmax stay in float:
# raw features have ranges that one scale for all columns would flatten.
_QUANTIZED = ["Conv", "Gemm", "MatMul"]

_FAULTS: tuple[type[Exception], ...] = (*RUNTIME_ERRORS, AssertionError)


class _Rows(CalibrationDataReader):  # type: ignore[misc]
    """Hands calibration batches to onnxruntime, once."""

    def __init__(self, batches: Iterable[Array]) -> None:
        self.batches: Iterator[Array] = iter(batches)

    def get_next(self) -> dict[str, Array] | None:
        """Return the next feed, or None at the end."""
        batch = next(self.batches, None)
        return None if batch is None else {FEATURES: batch}


def quantize_int8(source: Path, calibration: Iterable[Array], path: Path) -> None:
    """Write an int8 form of an ONNX model: per-channel weights, min-max activations, S8S8.

    Weights have 7 bits: x86 processors without VNNI add pairs of products in 16 bits, which 8 bits
    overflow, so the answers would be other ones there (ONNX Runtime's guide to quantization).

    Args:
        source: the fp32 model.
        calibration: float32 `[rows, raw_width]` batches from the train split.
        path: where to write.

    Raises:
        WorkError: the model has no layer that can be quantized, or ONNX Runtime cannot do it.
    """
    if not any(node.op_type in _QUANTIZED for node in onnx.load(source).graph.node):
        raise WorkError(
            "nothing in the model can be quantized",
            valid=f"a model with {', '.join(_QUANTIZED)}",
            hint="leave onnx-int8-static out of export.candidates",
        )
    with tempfile.TemporaryDirectory() as folder, quiet_root(), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of a tensor that is NaN throughout
        prepared = Path(folder) / "prepared.onnx"
        try:
            quant_pre_process(str(source), str(prepared), skip_symbolic_shape=True)
            quantize_static(
                str(prepared),
                str(path),
                _Rows(calibration),
                quant_format=QuantFormat.QDQ,
                op_types_to_quantize=_QUANTIZED,
                per_channel=True,
                reduce_range=True,
                activation_type=QuantType.QInt8,
                weight_type=QuantType.QInt8,
                calibrate_method=CalibrationMethod.MinMax,
            )
        except _FAULTS as error:
            raise WorkError(
                "ONNX Runtime cannot quantize the model",
                seen=next(iter(str(error).splitlines()), type(error).__name__),
                valid="finite rows to calibrate with, and the operators that it knows",
                hint="leave onnx-int8-static out of export.candidates",
            ) from error
