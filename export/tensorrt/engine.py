"""A TensorRT engine: the sizes it is built for, the name of its file, and a session to run it.

This module has not been run on a GPU yet.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from millrace.models.common.arrays import Array
from millrace.models.common.errors import InputError, WorkError
from millrace.models.common.hardware import EngineFingerprint
from millrace.models.inference.model_input import ModelInput

SUFFIX = ".plan"


@dataclass(frozen=True)
class Sizes:
    """The sizes that one dynamic dimension of a model has in serving.

    Attributes:
        smallest: smallest size.
        best: the size that kernels are optimized for.
        largest: largest size.
    """

    smallest: int
    best: int
    largest: int


Axes = Mapping[str, Sizes]
"""The sizes of each dynamic dimension, by its name in the ONNX graph: one optimization profile."""


def axes_of(read: ModelInput, largest_batch: int, golden_rows: int) -> Axes:
    """Return the sizes of a model's dynamic dimensions: rows, and tokens if the input is text.

    Args:
        read: the model's input.
        largest_batch: largest batch in serving, which kernels are optimized for.
        golden_rows: number of rows of the golden batch, which is sent as one request.
    """
    axes = {"rows": Sizes(1, largest_batch, max(largest_batch, golden_rows))}
    if read.padding is not None:
        axes["tokens"] = Sizes(1, read.width, read.width)
    return axes


def file_of(folder: Path, name: str, ties: EngineFingerprint) -> Path:
    """Return the path of a variant's engine; the file name contains GPU and software versions.

    Args:
        folder: folder of the variants.
        name: the variant's name.
        ties: the GPU and software versions that the engine depends on.
    """
    return folder / f"{name}.{ties.slug}{SUFFIX}"


def options_of(axes: Axes) -> tuple[str, ...]:
    """Return the command-line options of the engine builder for these dynamic dimensions."""
    words = (f"{n}={s.smallest}:{s.best}:{s.largest}" for n, s in axes.items())
    return tuple(word for axis in words for word in ("--axis", axis))


def timing_cache(folder: Path, ties: EngineFingerprint) -> Path:
    """Return the path of TensorRT's timing cache, which speeds up later builds."""
    return folder / f"{ties.slug}.timing"


class EngineSession:
    """A loaded engine, with the interface of `OnnxSession`.

    Inputs and outputs are arrays in host memory.
    """

    def __init__(self, path: Path) -> None:
        """Load an engine.

        Raises:
            InputError: the engine was built for another GPU or TensorRT, or the file is no engine.
        """
        import tensorrt as trt
        import torch

        self._trt, self._torch = trt, torch
        # A reference, because the engine itself does not keep the runtime alive.
        self._runtime = trt.Runtime(trt.Logger(trt.Logger.ERROR))
        self._engine = self._runtime.deserialize_cuda_engine(path.read_bytes())
        if self._engine is None:
            raise InputError(
                f"{path.name} is not a TensorRT engine that runs on this machine",
                valid="an engine that was built with this GPU, driver and TensorRT version",
                hint="build the engine again on this machine",
            )
        self._context: Any = self._engine.create_execution_context()
        names = [self._engine.get_tensor_name(n) for n in range(self._engine.num_io_tensors)]
        modes = {name: self._engine.get_tensor_mode(name) for name in names}
        self._output = next(n for n in names if modes[n] == trt.TensorIOMode.OUTPUT)
        self._stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def run(self, inputs: Mapping[str, Array]) -> Array:
        """Run the engine on one array per input, `[rows, …]`; return the first output `[rows, …]`.

        Raises:
            WorkError: a shape is outside the optimization profile, or the engine failed.
        """
        torch, context = self._torch, self._context
        with torch.cuda.stream(self._stream):
            # Referenced until the end, because TensorRT has only the addresses of the tensors.
            tensors = {
                name: torch.from_numpy(np.ascontiguousarray(array)).cuda()
                for name, array in inputs.items()
            }
            for name, tensor in tensors.items():
                if not context.set_input_shape(name, tuple(tensor.shape)):
                    raise WorkError(
                        f"the TensorRT engine does not accept this shape of the input {name}",
                        seen=tuple(tensor.shape),
                        valid="the sizes of the engine's optimization profile",
                    )
                context.set_tensor_address(name, tensor.data_ptr())
            answer = self._empty_output()
            context.set_tensor_address(self._output, answer.data_ptr())
            if not context.execute_async_v3(self._stream.cuda_stream):
                raise WorkError("the TensorRT engine failed to run")
            answered = answer.cpu()
        self._stream.synchronize()
        return np.asarray(answered.numpy())

    def _empty_output(self) -> Any:
        """Return an empty GPU tensor for the output, whose shape depends on the input shapes."""
        kind = self._trt.nptype(self._engine.get_tensor_dtype(self._output))
        shape = tuple(self._context.get_tensor_shape(self._output))
        return self._torch.from_numpy(np.empty(shape, kind)).cuda()
