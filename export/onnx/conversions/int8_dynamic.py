"""int8 weights; activations are scaled by what each batch holds. Needs no calibration."""

import tempfile
from pathlib import Path

import onnx
from onnxruntime.quantization import QuantType, quantize_dynamic
from onnxruntime.quantization.shape_inference import quant_pre_process

from .arguments import parser, require_layers
from .embeddings import quantize_tables

LAYERS = ["Gemm", "MatMul"]
"""Not Conv: ONNX Runtime's ConvInteger is slower than the float32 one."""


def main() -> None:
    """Convert one file."""
    given = parser(__doc__).parse_args()
    require_layers(given.source, LAYERS)
    with tempfile.TemporaryDirectory() as folder:
        prepared = Path(folder) / "prepared.onnx"
        quant_pre_process(str(given.source), str(prepared), skip_symbolic_shape=True)
        model = onnx.load(prepared)
        # Weights of Gemm are transposed on the way, and shapes that were noted hold no more.
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
