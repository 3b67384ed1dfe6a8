"""Translate the TensorRT accelerator in `config.pbtxt` to options of ONNX Runtime's provider.

The parameters have the names of Triton's C++ backend. Most are ONNX Runtime's own option names,
which begin with `trt_`.
"""

from collections.abc import Mapping
from typing import Any

NAME = "tensorrt"
PRECISIONS: Mapping[str, str | None] = {
    "FP32": None,
    "FP16": "trt_fp16_enable",
    "BF16": "trt_bf16_enable",
    "INT8": "trt_int8_enable",
}
RENAMED = {
    "max_workspace_size_bytes": "trt_max_workspace_size",
    "int8_calibration_table_name": "trt_int8_calibration_table_name",
    "int8_use_native_calibration_table": "trt_int8_use_native_calibration_table",
}


def tensorrt_options(config: Mapping[str, Any]) -> dict[str, str] | None:
    """Return the options of the TensorRT provider; None if TensorRT is not requested.

    Args:
        config: the parsed JSON form of `config.pbtxt`.

    Raises:
        ValueError: an accelerator, a parameter or a precision is unknown.
    """
    accelerators = config.get("optimization", {}).get("execution_accelerators", {})
    found = None
    for each in accelerators.get("gpu_execution_accelerator", []):
        if each["name"] != NAME:
            raise ValueError(f"unknown Execution Accelerator {each['name']!r} is requested")
        found = dict(map(_read_option, each.get("parameters", {}).items()))
        found.pop("", None)
    return found


def _read_option(parameter: tuple[str, str]) -> tuple[str, str]:
    """Return the provider's option and its value; the option is "" for the default precision."""
    name, value = parameter
    if name == "precision_mode":
        if value not in PRECISIONS:
            raise ValueError(f"unsupported precision mode {value!r} is requested")
        return PRECISIONS[value] or "", "1"
    option = RENAMED.get(name, name)
    if not option.startswith("trt_"):
        raise ValueError(f"unknown parameter {name!r} is provided for TensorRT")
    return option, value
