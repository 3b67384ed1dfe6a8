"""Exports a PyTorch module to ONNX with torch's current exporter.

`python -m millrace.export.onnx.torch_export FILE` reads a pickled module from stdin and exports it
to FILE. The training run pickles the module in memory, so no stored file is ever unpickled.
"""

import logging
import re
import sys
import warnings
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path

import cloudpickle  # type: ignore[import-untyped,unused-ignore]
import onnx
import torch
from torch import nn

from millrace.models.common.errors import WorkError
from millrace.models.common.quiet import quiet
from millrace.models.common.subprocess_runner import Limits, run_in_subprocess
from millrace.models.inference.model_input import ModelInput

OPSET = 20

_log = logging.getLogger(__name__)
_CHATTY = ("torch.onnx", "torch.export", "torch._dynamo", "torch.fx.experimental.symbolic_shapes")


def export_onnx(served: nn.Module, read: ModelInput, output: str, path: Path) -> None:
    """Write a module as one ONNX file with a dynamic batch size and, for text, a dynamic length.

    Args:
        served: module from `[rows, width]` to float32 `[rows, outputs]`.
        read: the module's input.
        output: name of the output.
        path: file to write, which includes the weights.

    Raises:
        WorkError: the module cannot be exported.
    """
    served = served.eval().cpu()
    # Three rows, because torch.export treats the sizes 0 and 1 as constants.
    example = (torch.from_numpy(read.example(3)),)
    dynamic = {0: torch.export.Dim("rows")}
    if read.padding is not None:
        dynamic[1] = torch.export.Dim("tokens", max=read.width)
    printed = StringIO()
    try:
        with warnings.catch_warnings(), quiet(*_CHATTY), redirect_stderr(printed):
            warnings.simplefilter("ignore")
            torch.onnx.export(
                served,
                example,
                str(path),
                input_names=[read.name],
                output_names=[output],
                opset_version=OPSET,
                # By position, because the name of `forward`'s argument is not known.
                dynamic_shapes=(dynamic,),
                external_data=False,
                verbose=False,
            )
        _strip(path)
        onnx.checker.check_model(str(path), full_check=True)
    except (torch.onnx.OnnxExporterError, onnx.checker.ValidationError) as error:
        _log.debug("torch printed:\n%s", printed.getvalue())
        raise WorkError(
            "the model cannot be exported to ONNX",
            seen=_first_line(_last_cause(error)),
            valid="a forward method without data-dependent control flow",
            hint="call torch.onnx.export on the module by itself to find the cause",
        ) from error


def _strip(path: Path) -> None:
    """Remove the metadata that torch adds to every node: stack traces with local paths.

    For a small model, the stack traces are larger than the weights.
    """
    model = onnx.load(path)
    for node in model.graph.node:
        del node.metadata_props[:]
    onnx.save_model(model, path)


def _last_cause(error: BaseException) -> BaseException:
    """Return the root cause of an error; the exporter's own error names only the failed step."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _first_line(error: BaseException) -> str:
    """Return the first line of an error's text, without terminal colour codes."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).strip()
    return plain.partition("\n")[0] or type(error).__name__


def export_in_subprocess(
    served: nn.Module, read: ModelInput, output: str, path: Path, limits: Limits
) -> None:
    """Run `export_onnx` in a subprocess.

    Args:
        served: module from `[rows, width]` to float32 `[rows, outputs]`.
        read: the module's input.
        output: name of the output.
        path: file to write.
        limits: time and memory limits of the subprocess.

    Raises:
        WorkError: the module cannot be exported, or the export exceeded the limits.
    """
    given = cloudpickle.dumps((served.eval().cpu(), read, output))
    run_in_subprocess(
        "millrace.export.onnx.torch_export",
        [path],
        limits,
        what="its conversion",
        stdin=given,
        retry_killed=False,
        may_fork=True,
    )


def main() -> None:
    """Export the pickled module on stdin to the file named on the command line."""
    served, read, output = cloudpickle.loads(sys.stdin.buffer.read())
    export_onnx(served, read, output, Path(sys.argv[1]))


if __name__ == "__main__":
    main()
