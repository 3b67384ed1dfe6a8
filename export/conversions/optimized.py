"""onnxruntime's graph optimizations, applied once instead of at every load.

Attention, LayerNorm and GELU of a transformer are fused into one node each.
"""

import onnxruntime
from onnxruntime.transformers import optimizer

from .arguments import parser

LEVEL = 1
"""The levels above choose kernels for the processor that this runs on."""


def main() -> None:
    """Convert one file."""
    made = parser(__doc__)
    made.add_argument("--heads", type=int, default=0, help="of attention; 0 for no transformer")
    made.add_argument("--hidden", type=int, default=0, help="width of a transformer")
    given = made.parse_args()
    if given.heads:
        fused = optimizer.optimize_model(
            str(given.source),
            model_type="bert",
            num_heads=given.heads,
            hidden_size=given.hidden,
            opt_level=LEVEL,
        )
        fused.save_model_to_file(str(given.target))
        return
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(given.target)
    onnxruntime.InferenceSession(str(given.source), options, providers=["CPUExecutionProvider"])


if __name__ == "__main__":
    main()
