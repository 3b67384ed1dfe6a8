"""int4 or int8 weights in blocks; activations stay in float (MatMulNBits)."""

import onnx
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

from .arguments import parser, require_layers
from .embeddings import quantize_tables


def main() -> None:
    """Convert one file."""
    made = parser(__doc__)
    made.add_argument("--bits", type=int, choices=(4, 8), default=4)
    made.add_argument("--block-size", type=int, default=32)
    given = made.parse_args()
    require_layers(given.source, ["MatMul"])
    quantizer = MatMulNBitsQuantizer(
        onnx.load(given.source),
        bits=given.bits,
        block_size=given.block_size,
        is_symmetric=True,
        accuracy_level=4,  # products in int8, sums in int32
        op_types_to_quantize=("MatMul",),
    )
    quantizer.process()
    onnx.save_model(quantizer.model.model, given.target)
    quantize_tables(given.target)


if __name__ == "__main__":
    main()
