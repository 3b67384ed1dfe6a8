"""onnxruntime's graph optimizations, applied once instead of at every load.

Attention, LayerNorm with its skip and GELU with its bias become one node each in a transformer.
"""

import tempfile
from pathlib import Path

import onnx
import onnxruntime
from onnxruntime.transformers import optimizer

from . import attention
from .arguments import parser


def main() -> None:
    """Convert one file."""
    given = parser(__doc__).parse_args()
    model = onnx.load(given.source)
    if any(node.op_type == "LayerNormalization" for node in model.graph.node):
        fuse(model, given.target)
    else:
        optimize(given.source, given.target)


def fuse(model: onnx.ModelProto, target: Path) -> None:
    """Fuse the nodes of a transformer."""
    found = attention.plain(model)
    plain, heads = found or (model, attention.Heads(0, 0))
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "plain.onnx"
        onnx.save_model(plain, source)
        fused = optimizer.optimize_model(
            str(source),
            model_type="bert",
            num_heads=heads.count,
            hidden_size=heads.hidden,
            opt_level=0,  # the levels above choose kernels for the processor that this runs on
        )
    fused.save_model_to_file(str(target))


def optimize(source: Path, target: Path) -> None:
    """Fold constants and drop what does nothing, on any graph."""
    options = onnxruntime.SessionOptions()
    # the levels above choose kernels for the processor that this runs on
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(target)
    onnxruntime.InferenceSession(str(source), options, providers=["CPUExecutionProvider"])


if __name__ == "__main__":
    main()
