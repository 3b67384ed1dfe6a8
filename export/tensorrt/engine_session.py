"""One TensorRT engine, answered as an `OnnxSession` is: arrays in host memory go in and come out.

Not run on a GPU yet.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from millrace.models.common.arrays import Array
from millrace.models.common.errors import InputError, WorkError


class EngineSession:
    """An engine file, ready to answer on the GPU that it was built on."""

    def __init__(self, path: Path) -> None:
        """Load an engine.

        Raises:
            InputError: it was built for another GPU or another TensorRT, or is no engine.
        """
        import tensorrt as trt
        import torch

        self._trt, self._torch = trt, torch
        self._runtime = trt.Runtime(trt.Logger(trt.Logger.ERROR))  # the engine does not keep it
        self._engine = self._runtime.deserialize_cuda_engine(path.read_bytes())
        if self._engine is None:
            raise InputError(
                f"{path.name} is not an engine that runs here",
                valid="an engine that was built with this GPU, driver and TensorRT",
                hint="build it again on this machine",
            )
        self._context: Any = self._engine.create_execution_context()
        names = [self._engine.get_tensor_name(n) for n in range(self._engine.num_io_tensors)]
        modes = {name: self._engine.get_tensor_mode(name) for name in names}
        self._output = next(n for n in names if modes[n] == trt.TensorIOMode.OUTPUT)
        self._stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def run(self, inputs: Mapping[str, Array]) -> Array:
        """Return the first output `[rows, …]` for one array for each input, `[rows, …]`.

        Raises:
            WorkError: a shape is outside the optimization profile, or the engine failed.
        """
        torch, context = self._torch, self._context
        with torch.cuda.stream(self._stream):
            # held until the end: TensorRT knows only their addresses
            held = {
                name: torch.from_numpy(np.ascontiguousarray(array)).cuda()
                for name, array in inputs.items()
            }
            for name, tensor in held.items():
                if not context.set_input_shape(name, tuple(tensor.shape)):
                    raise WorkError(
                        f"the engine takes no {name} of this shape",
                        seen=tuple(tensor.shape),
                        valid="the sizes of its optimization profile",
                    )
                context.set_tensor_address(name, tensor.data_ptr())
            answer = self._empty_output()
            context.set_tensor_address(self._output, answer.data_ptr())
            if not context.execute_async_v3(self._stream.cuda_stream):
                raise WorkError("the engine failed")
            answered = answer.cpu()
        self._stream.synchronize()
        return np.asarray(answered.numpy())

    def _empty_output(self) -> Any:
        """Return room on the GPU for the output, whose shape follows from those of the inputs."""
        kind = self._trt.nptype(self._engine.get_tensor_dtype(self._output))
        shape = tuple(self._context.get_tensor_shape(self._output))
        return self._torch.from_numpy(np.empty(shape, kind)).cuda()
