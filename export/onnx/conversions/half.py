"""fp16 weights and activations; inputs and outputs stay in float32."""

import onnx
from onnxruntime.transformers.float16 import convert_float_to_float16
from onnxruntime.transformers.onnx_model import OnnxModel

from .arguments import parser


def main() -> None:
    """Convert one file."""
    given = parser(__doc__).parse_args()
    model = onnx.shape_inference.infer_shapes(onnx.load(given.source))
    half = convert_float_to_float16(model, keep_io_types=True)
    OnnxModel.graph_topological_sort(half.graph)  # the conversion appends its casts at the end
    onnx.save_model(half, given.target)


if __name__ == "__main__":
    main()
