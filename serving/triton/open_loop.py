"""An open-loop load generator: requests are sent when they are due, whatever waits for an answer.

A closed loop hides a slow server, as its clients wait for it ("coordinated omission"). Here latency
is counted from the time at which a request was due, so that what the generator sends late counts
as latency and never against it. What the generator itself cost is part of the result.

Requests go over gRPC as bytes that were made before, and answers are not parsed: in a test of 2
cores the generator shares them with the server that it measures.
"""

import gc
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc
import numpy as np
from numpy.typing import NDArray
from tritonclient.grpc import service_pb2

from millrace.models.common.installation import Endpoint
from millrace.serving.triton.client import to_input

METHOD = "/inference.GRPCInferenceService/ModelInfer"
WAIT_SECONDS = 10.0
"""Seconds after the last request was due in which its answer still counts."""
LARGEST_MESSAGE = 2**31 - 1


@dataclass(frozen=True)
class SentLoad:
    """What became of the requests of an open loop.

    Attributes:
        due: float64 `[n]`, seconds from the start at which each request was due, ascending.
        sent: float64 `[n]`, seconds at which it was sent.
        ended: float64 `[n]`, seconds at which its answer was there; infinite without an answer.
        errors: how many requests failed, by the status code of gRPC.
        cpu_seconds: CPU time of the generator's process.
        first_error: what the server said of the first request that failed; empty if none did.
    """

    due: NDArray[np.float64]
    sent: NDArray[np.float64]
    ended: NDArray[np.float64]
    errors: Mapping[str, int]
    cpu_seconds: float
    first_error: str = ""

    @property
    def latency(self) -> NDArray[np.float64]:
        """Seconds from when each request was due to its answer, float64 `[n]`."""
        return self.ended - self.due

    @property
    def lateness(self) -> NDArray[np.float64]:
        """Seconds by which each request was sent late, float64 `[n]`."""
        return self.sent - self.due

    @property
    def client_share(self) -> float:
        """Share of one core that the generator used while requests were due."""
        return self.cpu_seconds / float(self.due[-1]) if len(self.due) else 0.0


def encode_request(model: str, inputs: Mapping[str, NDArray[Any]], version: str = "") -> bytes:
    """Return a request as the bytes that are sent.

    Args:
        model: the model.
        inputs: the arrays by input name, with the batch as first dimension.
        version: a version; empty for the live one.
    """
    tensors = [to_input(name, array) for name, array in inputs.items()]
    request = service_pb2.ModelInferRequest(model_name=model, model_version=version)
    request.inputs.extend(each._get_tensor() for each in tensors)
    request.raw_input_contents.extend(each._get_content() for each in tensors)
    return bytes(request.SerializeToString())


class OpenLoop:
    """One connection that sends requests on time.

    Args:
        endpoint: the server.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        options = [
            (f"grpc.max_{way}_message_length", LARGEST_MESSAGE) for way in ("send", "receive")
        ]
        self._channel = grpc.insecure_channel(endpoint.grpc, options)
        self._call = self._channel.unary_unary(METHOD)

    def __enter__(self) -> "OpenLoop":
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def send(
        self,
        due: NDArray[np.float64],
        requests: Sequence[bytes],
        *,
        looks: Sequence[int] = (),
        is_decided: Callable[[NDArray[np.float64]], bool] = lambda _: False,
    ) -> SentLoad:
        """Send requests when they are due, and return what became of them.

        Args:
            due: float64 `[n]`, seconds from the start, ascending.
            requests: the request of each, from `encode_request`.
            looks: after how many answered requests `is_decided` is asked, ascending.
            is_decided: whether no more requests are needed, from the latencies so far.
        """
        run = _Run(due, looks, is_decided)
        with _without_garbage_collection():
            before = time.process_time()
            run.start(self._call, requests)
            cpu = time.process_time() - before
        many = run.count
        arrays = due[:many], run.sent[:many], run.ended[:many]
        return SentLoad(*arrays, dict(run.errors), cpu, run.first_error)


class _Run:
    """One run of the generator: the caller's thread sends, a thread of gRPC receives."""

    def __init__(
        self,
        due: NDArray[np.float64],
        looks: Sequence[int],
        is_decided: Callable[[NDArray[np.float64]], bool],
    ) -> None:
        self._due, self._looks, self._is_decided = due, list(looks), is_decided
        self.sent = np.full(len(due), np.inf)
        self.ended = np.full(len(due), np.inf)
        self.errors: Counter[str] = Counter()
        self.first_error = ""
        self.count = 0
        self._has_ended = np.zeros(len(due), bool)
        self._answered = 0
        self._begin = 0.0
        self._changed = threading.Condition()

    def start(self, call: Any, requests: Sequence[bytes]) -> None:
        """Send until the last request, or until a look decides; then wait for the answers."""
        due = self._due.tolist()
        limit = WAIT_SECONDS + (due[-1] if due else 0.0)
        self._begin = time.perf_counter()
        for number, (when, request) in enumerate(zip(due, requests, strict=True)):
            if self._looks and self._decides():
                break
            wait = when - self._now()
            if wait > 0:
                time.sleep(wait)
            self.sent[number] = self._now()
            self.count = number + 1
            future = call.future(request, timeout=limit - self._now())
            future.add_done_callback(partial(self._receive, number))
        self._await_answers(limit)

    def _now(self) -> float:
        return time.perf_counter() - self._begin

    def _receive(self, number: int, future: Any) -> None:
        """Note an answer; it runs in a thread of gRPC."""
        ended, code = self._now(), future.code()
        if code is grpc.StatusCode.OK:
            self.ended[number] = ended
        else:
            self.errors[code.name] += 1
            self.first_error = self.first_error or str(future.details())
        with self._changed:
            self._has_ended[number] = True
            self._answered += 1
            self._changed.notify()

    def _decides(self) -> bool:
        """Look at the latencies if the next look's requests are all answered."""
        look = self._looks[0]
        if self._answered < look or not self._has_ended[:look].all():
            return False
        self._looks.pop(0)
        return self._is_decided(self.ended[:look] - self._due[:look])

    def _await_answers(self, limit: float) -> None:
        with self._changed:
            self._changed.wait_for(
                lambda: self._answered >= self.count, max(0.0, limit - self._now())
            )


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Keep Python's garbage collector from stopping the generator."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
