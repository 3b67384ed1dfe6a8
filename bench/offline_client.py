"""A client of Triton built for throughput: shared memory, and several requests in flight."""

import os
import time
from collections.abc import Mapping
from contextlib import ExitStack
from queue import SimpleQueue
from typing import Any

import numpy as np
import numpy.typing as npt
from tritonclient import grpc
from tritonclient.utils import np_to_triton_dtype, shared_memory

from millrace.models.common.installation import Endpoint
from millrace.serving.triton.client import connect

Array = npt.NDArray[Any]


class OfflineClient:
    """Sends one batch again and again, with the tensors in system shared memory.

    Every request writes its batch into the shared region and reads its answer from there, as if the
    batches were different.

    Args:
        endpoint: the server, on this machine.
        model: a model that is loaded.
        feed: the batch, by input.
        answer: shapes of the float32 outputs.
        in_flight: number of requests in flight at any time.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        model: str,
        feed: Mapping[str, Array],
        answer: Mapping[str, tuple[int, ...]],
        in_flight: int,
    ) -> None:
        self.model, self.rows = model, len(next(iter(feed.values())))
        self._opened = ExitStack()
        self._grpc = connect(endpoint)
        self._opened.callback(self._grpc.close)
        self._slots = [
            _Slot(self._grpc, self._opened, number, feed, answer) for number in range(in_flight)
        ]

    def close(self) -> None:
        """Release the shared memory, and close the connection."""
        self._opened.close()

    def rows_per_second(self, seconds: float) -> float:
        """Send requests for so long, and return the rows answered per second."""
        done: SimpleQueue[tuple[_Slot, Exception | None]] = SimpleQueue()
        begin = time.perf_counter()
        for slot in self._slots:
            self._send(slot, done)
        answered, in_flight = 0, len(self._slots)
        while in_flight:
            slot, error = done.get()
            if error is not None:
                raise error
            slot.read()
            answered += 1
            if time.perf_counter() - begin < seconds:
                self._send(slot, done)
            else:
                in_flight -= 1
        return answered * self.rows / (time.perf_counter() - begin)

    def _send(self, slot: "_Slot", done: "SimpleQueue[tuple[_Slot, Exception | None]]") -> None:
        slot.write()
        self._grpc.async_infer(
            self.model,
            slot.inputs,
            outputs=slot.outputs,
            callback=lambda result, error: done.put((slot, error)),
        )


class _Slot:
    """Shared regions for one request in flight."""

    def __init__(
        self,
        client: grpc.InferenceServerClient,
        opened: ExitStack,
        number: int,
        feed: Mapping[str, Array],
        answer: Mapping[str, tuple[int, ...]],
    ) -> None:
        self._written: list[tuple[Any, Array]] = []
        self._read: list[tuple[Any, tuple[int, ...]]] = []
        self.inputs, self.outputs = [], []
        for name, array in feed.items():
            region, handle = _region(client, opened, f"{number}_{name}", array.nbytes)
            self._written.append((handle, array))
            tensor = grpc.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
            tensor.set_shared_memory(region, array.nbytes)
            self.inputs.append(tensor)
        for name, shape in answer.items():
            size = 4 * int(np.prod(shape))
            region, handle = _region(client, opened, f"{number}_{name}", size)
            self._read.append((handle, shape))
            output = grpc.InferRequestedOutput(name)
            output.set_shared_memory(region, size)
            self.outputs.append(output)

    def write(self) -> None:
        """Write the batch into shared memory."""
        for handle, array in self._written:
            shared_memory.set_shared_memory_region(handle, [array])

    def read(self) -> list[Array]:
        """Return copies of the answers."""
        return [
            shared_memory.get_contents_as_numpy(handle, np.float32, shape).copy()
            for handle, shape in self._read
        ]


def _region(
    client: grpc.InferenceServerClient, opened: ExitStack, name: str, size: int
) -> tuple[str, Any]:
    """Create a region of shared memory and register it; `opened` undoes both."""
    key = f"millrace_bench_{os.getpid()}_{name}"
    handle = shared_memory.create_shared_memory_region(key, f"/{key}", size)
    opened.callback(shared_memory.destroy_shared_memory_region, handle)
    client.register_system_shared_memory(key, f"/{key}", size)
    opened.callback(client.unregister_system_shared_memory, key)
    return key, handle
