"""fp8 weights and activations (E4M3, QDQ); activation scales come from rows of the train split.

For TensorRT, on GPUs of compute capability 8.9 and above; onnxruntime cannot multiply fp8 on a CPU.
The format is that of Micikevicius et al. 2022, "FP8 Formats for Deep Learning". The scales are
onnxruntime's: the standard deviation of the calibration values, relative to the standard deviation
of all fp8 numbers.
"""

import tempfile
from pathlib import Path

from onnxruntime.quantization import (
    CalibrationMethod,
    QuantFormat,
    QuantType,
    quantize_static,
)
from onnxruntime.quantization.shape_inference import quant_pre_process

from .arguments import HEAVY, parser, require_layers
from .int8_static import Rows


def main() -> None:
    """Convert one file."""
    given = parser(__doc__, calibrated=True).parse_args()
    require_layers(given.source, HEAVY)
    with tempfile.TemporaryDirectory() as folder:
        prepared = Path(folder) / "prepared.onnx"
        quant_pre_process(str(given.source), str(prepared), skip_symbolic_shape=True)
        quantize_static(
            str(prepared),
            str(given.target),
            Rows(given.calibration, "distribution"),
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=HEAVY,
            activation_type=QuantType.QFLOAT8E4M3FN,
            weight_type=QuantType.QFLOAT8E4M3FN,
            # the only method that onnxruntime has for fp8
            calibrate_method=CalibrationMethod.Distribution,
            extra_options={
                "OpTypesToExcludeOutputQuantization": HEAVY,
                "ActivationSymmetric": True,
                "QuantizeBias": False,
            },
        )


if __name__ == "__main__":
    main()
