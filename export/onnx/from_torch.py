"""`python -m millrace.export.onnx.from_torch FILE`: export the module on stdin to FILE.

The module is pickled by the run that trained it, in memory; nothing that was stored is read so.
"""

import sys
from pathlib import Path

import cloudpickle  # type: ignore[import-untyped,unused-ignore]
from torch import nn

from millrace.export.onnx.torch_export import export_onnx
from millrace.models.common.errors import TransientError, WorkError
from millrace.models.common.subprocess_runner import Limits, run_in_subprocess
from millrace.models.inference.model_input import ModelInput


def export_apart(
    served: nn.Module, read: ModelInput, output: str, path: Path, limits: Limits
) -> None:
    """Do what `export_onnx` does, in a process of its own.

    Args:
        served: `[rows, width]` to float32 `[rows, outputs]`.
        read: its input.
        output: name of the output.
        path: where to write.
        limits: what it may take.

    Raises:
        WorkError: the module cannot be exported, or takes more than the limits.
    """
    given = cloudpickle.dumps((served.eval().cpu(), read, output))
    try:
        run_in_subprocess(
            "millrace.export.onnx.from_torch", [path], limits, what="its conversion", stdin=given
        )
    except TransientError as error:  # killed, most likely for its memory
        raise WorkError(error.what) from error


def main() -> None:
    """Export the pickled module on stdin to the file that is named."""
    served, read, output = cloudpickle.loads(sys.stdin.buffer.read())
    export_onnx(served, read, output, Path(sys.argv[1]))


if __name__ == "__main__":
    main()
