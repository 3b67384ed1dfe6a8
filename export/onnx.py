"""PyTorch to ONNX, by torch's current exporter."""

import logging
import warnings
from pathlib import Path

import onnx
import torch
from torch import nn

from models.errors import WorkError
from models.features import FEATURES

OPSET = 20


def export_onnx(served: nn.Module, raw_width: int, output: str, path: Path) -> None:
    """Write `served` as one ONNX file with a dynamic batch.

    Args:
        served: float32 `[rows, raw_width]` to float32 `[rows, outputs]`.
        raw_width: width of the input `features`.
        output: name of the output.
        path: where to write. Weights are inside this one file.

    Raises:
        WorkError: the module cannot be exported.
    """
    served = served.eval().cpu()
    # Three rows: sizes 0 and 1 are special to torch.export and would be fixed.
    example = (torch.zeros(3, raw_width),)
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                served,
                example,
                str(path),
                input_names=[FEATURES],
                output_names=[output],
                opset_version=OPSET,
                dynamic_shapes={FEATURES: {0: torch.export.Dim("rows")}},
                external_data=False,
                verbose=False,
            )
    except torch.onnx.OnnxExporterError as error:
        raise WorkError(
            "the model cannot be exported to ONNX",
            seen=str(error).strip().splitlines()[0],
            valid="a forward without data-dependent control flow",
            hint="try torch.onnx.export on the module alone; see the log of this run",
        ) from error
    onnx.checker.check_model(str(path), full_check=True)
