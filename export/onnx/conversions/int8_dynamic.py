"""int8 weights; activations are scaled by the values of each batch. Needs no calibration."""

import tempfile
from pathlib import Path

import onnx
from onnxruntime.quantization import QuantType, quantize_dynamic
from onnxruntime.quantization.shape_inference import quant_pre_process

from .arguments import parser, require_layers
from .embeddings import quantize_tables

LAYERS = ["Gemm", "MatMul"]
"""Without Conv, because ONNX Runtime's ConvInteger is slower than its float32 Conv."""


def main() -> None:
    """Convert one file."""
    given = parser(__doc__).parse_args()
    require_layers(given.source, LAYERS)
    with tempfile.TemporaryDirectory() as folder:
        prepared = Path(folder) / "prepared.onnx"
        quant_pre_process(str(given.source), str(prepared), skip_symbolic_shape=True)
        model = onnx.load(prepared)
        # Quantization transposes the weights of Gemm, which makes the inferred shapes wrong.
        model.graph.ClearField("value_info")
        quantize_dynamic(
            model,
            given.target,
            op_types_to_quantize=LAYERS,
            per_channel=True,
            reduce_range=True,
            weight_type=QuantType.QInt8,
        )
    quantize_tables(given.target)


if __name__ == "__main__":
    main()
