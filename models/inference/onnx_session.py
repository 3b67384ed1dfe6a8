"""An ONNX Runtime session with the same options wherever a model is measured or scores rows.

The TensorRT provider's options:
https://onnxruntime.ai/docs/execution-providers/TensorRT-ExecutionProvider.html
"""

import re
import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state

from millrace.models.common.arrays import Array
from millrace.models.common.errors import InputError, WorkError
from millrace.models.config.serving_spec import AcceleratorSpec

TENSORRT, CUDA = "TensorrtExecutionProvider", "CUDAExecutionProvider"
CPU = "CPUExecutionProvider"
RUNTIME_ERRORS: tuple[type[Exception], ...] = (
    # onnxruntime's own classes, which share no base class but Exception.
    *(
        kind
        for kind in vars(onnxruntime_pybind11_state).values()
        if isinstance(kind, type) and issubclass(kind, Exception)
    ),
    RuntimeError,
    ValueError,
)
"""What ONNX Runtime raises for a bad model or a bad input."""


class OnnxSession:
    """A loaded ONNX model. Another process has to open the file again by its path."""

    def __init__(
        self,
        path: Path | bytes,
        threads: int = 1,
        tensorrt: Mapping[str, str] | None = None,
        *,
        gpu: bool = True,
    ) -> None:
        """Open a model.

        Args:
            path: the `.onnx` file, weights inside; or its contents.
            threads: threads of one operator; operators run one at a time.
            tensorrt: options of the TensorRT provider, which runs the operators that it supports;
                None: do not use TensorRT.
            gpu: whether to run on a GPU, if there is one.

        Raises:
            InputError: the file is not a model that ONNX Runtime can run.
            WorkError: ONNX Runtime has no kernel for an operator on this machine, or cannot load
                TensorRT.
        """
        in_memory = isinstance(path, bytes)
        model, name = (path, "the model in memory") if in_memory else (str(path), str(path))
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        # Idle threads that spin take cores from the other sessions of a host.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.log_severity_level = 3
        try:
            providers = _providers_with_options() if gpu else [CPU]
            if tensorrt is not None:
                providers.insert(0, (TENSORRT, dict(tensorrt)))
            self._session: Any = onnxruntime.InferenceSession(model, options, providers=providers)
        except RUNTIME_ERRORS as error:
            if (operator := _find_missing_kernel(str(error))) is not None:
                variant = name if isinstance(path, bytes) else path.stem
                raise WorkError(
                    f"ONNX Runtime has no kernel on this machine for {operator} in {variant}",
                    seen=str(error).splitlines()[0],
                    hint="choose another variant in export.candidates",
                ) from error
            raise InputError(
                f"{name} is not a model that ONNX Runtime can run",
                seen=str(error).splitlines()[0],
                hint="export or fetch the model again",
            ) from error
        # ONNX Runtime continues without a provider that it cannot load.
        if tensorrt is not None and TENSORRT not in self._session.get_providers():
            raise WorkError(
                "ONNX Runtime cannot load TensorRT",
                seen=f"loaded providers: {', '.join(self._session.get_providers())}",
                valid="onnxruntime-gpu, and the TensorRT version that it was built with",
            )

    def answer(self, rows: Array) -> Array:
        """Return the answers float32 `[rows, outputs]` of a model with one input, `[rows, width]`.

        Raises:
            WorkError: the model cannot answer these rows.
        """
        return self.run({self._session.get_inputs()[0].name: rows})

    def run(self, inputs: Mapping[str, Array]) -> Array:
        """Return the answers float32 `[rows, outputs]` to `inputs`, arrays `[rows, …]` by name.

        Raises:
            WorkError: the model cannot answer these inputs.
        """
        try:
            return np.asarray(self._session.run(None, dict(inputs))[0])
        except RUNTIME_ERRORS as error:
            raise WorkError(
                "ONNX Runtime could not run the model on these inputs",
                seen=str(error).splitlines()[0],
                valid="inputs of the width that the model was trained on",
                hint="check that the model and encoding.json are from the same version",
            ) from error


def _find_missing_kernel(error: str) -> str | None:
    """Return the operator, and its type if known, for which an error reports a missing kernel."""
    if match := re.search(r"find an implementation for (\S+)", error):
        return match[1]
    # An ONNX graph that is optimized for fp8 has operators of int8.
    match = re.search(r"Type '(tensor\(float8\w+\))' .* operator \((\w+)\)", error)
    return f"{match[2]} of {match[1]}" if match else None


def execution_providers() -> list[str]:
    """Return the execution providers of this machine, the fastest first."""
    available = onnxruntime.get_available_providers()
    return [provider for provider in (CUDA, CPU) if provider in available]


def _providers_with_options() -> list[Any]:
    names = execution_providers()
    if CUDA not in names:
        return names
    _load_cuda()
    # By default float32 is multiplied with the 10 bits of TF32, and answers differ by 5e-4.
    return [(CUDA, {"use_tf32": "0"}), *(name for name in names if name != CUDA)]


@cache
def _load_cuda() -> None:
    """Load CUDA and cuDNN of the wheels `nvidia-…`, which the loader does not find by itself."""
    with redirect_stdout(sys.stderr):  # it prints what it does not find
        onnxruntime.preload_dlls()


FLAGS = {"FP16": "trt_fp16_enable", "BF16": "trt_bf16_enable", "INT8": "trt_int8_enable"}


def provider_options(spec: AcceleratorSpec) -> dict[str, str]:
    """Return the TensorRT options under ONNX Runtime's names, as Triton's backend sets them."""
    options = {"trt_max_workspace_size": str(spec.max_workspace_size_bytes)}
    if spec.precision_mode in FLAGS:
        options[FLAGS[spec.precision_mode]] = "1"
    if spec.trt_timing_cache_path is not None:
        options["trt_timing_cache_enable"] = "1"
        options["trt_timing_cache_path"] = spec.trt_timing_cache_path
    return options
