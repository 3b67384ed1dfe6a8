"""The forms a model can take, and the program that makes each."""

from collections.abc import Mapping
from dataclasses import dataclass

from export import conversions

FP32 = "onnx-fp32"
MIXED = "onnx-int8-mixed"
STATIC_FORM = "onnx-int8-static"
"""What the mixed one is, with layers in float."""


@dataclass(frozen=True)
class Form:
    """How one form is made out of another.

    Attributes:
        program: the module that makes it.
        options: for its command line.
        calibrated: whether it needs rows of the train split.
        source: the form that it is made of.
    """

    program: str
    options: tuple[str, ...] = ()
    calibrated: bool = False
    source: str = FP32


HALF = f"{conversions.__name__}.half"
OPTIMIZED = f"{conversions.__name__}.optimized"
DYNAMIC = f"{conversions.__name__}.int8_dynamic"
STATIC = f"{conversions.__name__}.int8_static"
SENSITIVITY = f"{conversions.__name__}.sensitivity"
SMOOTH = f"{conversions.__name__}.smooth_quant"
WEIGHTS = f"{conversions.__name__}.weights_only"

FORMS: Mapping[str, Form] = {
    "onnx-optimized": Form(OPTIMIZED),
    "onnx-fp16": Form(HALF),
    "onnx-int8-dynamic": Form(DYNAMIC),
    "onnx-int8-static": Form(STATIC, calibrated=True),
    "onnx-int8-static-s8": Form(STATIC, ("--activations", "s8"), calibrated=True),
    "onnx-int8-static-entropy": Form(STATIC, ("--method", "entropy"), calibrated=True),
    "onnx-int8-static-percentile": Form(STATIC, ("--method", "percentile"), calibrated=True),
    "onnx-int8-smooth": Form(SMOOTH, calibrated=True),
    "onnx-int8-weights": Form(WEIGHTS, ("--bits", "8")),
    "onnx-int4-weights": Form(WEIGHTS, ("--bits", "4")),
}
"""All but `FP32`, which is made by PyTorch itself, and `MIXED`, which is searched for."""
