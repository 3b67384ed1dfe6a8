"""The trace that Triton writes of each request: when it waited, and when it was computed.

Times are those of `CLOCK_MONOTONIC`, which `time.perf_counter` reads on Linux too, so they can be
compared with those of a client on the same machine.

Source: docs/user_guide/trace.md of triton-inference-server/server.
"""

import json
import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

QUEUED, STARTED, ENDED = "QUEUE_START", "COMPUTE_START", "COMPUTE_END"
ANSWERED = "INFER_RESPONSE_COMPLETE"
WRITE_SECONDS, POLL_SECONDS = 15.0, 0.05
RECEIVED, SENT = "GRPC_WAITREAD_END", "GRPC_SEND_END"
NAMES = (RECEIVED, QUEUED, STARTED, ANSWERED, ENDED, SENT)


TRACE_ENVIRONMENT = {"GLIBC_TUNABLES": "glibc.malloc.tcache_count=65535"}
"""Environment variables for a Triton that traces: without them Triton 2.51 crashes or stands still.

Its `TraceManager::TraceRelease` unlocks a mutex in memory that it has just freed, if the backend is
the last to release a request's trace. While each thread keeps what it freed to itself, as glibc
does up to this number of blocks of each size, nobody else has that memory yet.
"""


def trace_flags(file: Path) -> list[str]:
    """Return the arguments with which Triton writes every request's times to a file.

    It writes the file when it is told to trace no more, or when it ends.
    """
    settings = {"level": "TIMESTAMPS", "rate": 1, "count": -1, "mode": "triton"}
    flags = [f"--trace-config={key}={value}" for key, value in settings.items()]
    return [*flags, f"--trace-config=triton,file={file}"]


@dataclass(frozen=True)
class Traced:
    """The requests of one model that were answered, in the order in which they were received.

    Attributes:
        model: the model.
        received: float64 `[n]`, seconds at which the server had read each request.
        queued: float64 `[n]`, when it came into the queue.
        started: float64 `[n]`, when its batch started; requests of one batch have the same.
        answered: float64 `[n]`, when its answer was complete.
        ended: float64 `[n]`, when its batch ended.
        sent: float64 `[n]`, when the server had sent the answer.
    """

    model: str
    received: NDArray[np.float64]
    queued: NDArray[np.float64]
    started: NDArray[np.float64]
    answered: NDArray[np.float64]
    ended: NDArray[np.float64]
    sent: NDArray[np.float64]

    def part(self, start: int, end: int) -> "Traced":
        """Return the requests from one number to before another."""
        times = (self.received, self.queued, self.started, self.answered, self.ended, self.sent)
        return Traced(self.model, *(each[start:end] for each in times))


def wait_for_trace(file: Path, seconds: float = WRITE_SECONDS) -> dict[str, Traced]:
    """Return the requests in the trace that Triton is writing; none if it does not write it.

    Triton writes it when nobody holds a traced request any more, and closes the list only when it
    ends.

    Args:
        file: the trace, as in `trace_flags`.
        seconds: how long to wait.
    """
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with suppress(OSError, ValueError):  # it is not there, or not whole
            text = file.read_text()
            return read_trace(text if text.endswith("]") else f"{text}]")
        time.sleep(POLL_SECONDS)
    return {}


def read_trace(text: str) -> dict[str, Traced]:
    """Return the requests in a trace, by model.

    Requests that were not answered over gRPC, such as Triton's own to warm a model up, are left
    out.

    Raises:
        ValueError: the text is not a trace.
    """
    try:
        models, times = _read_entries(json.loads(text))
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError("this is no trace of Triton") from error
    found: defaultdict[str, list[list[int]]] = defaultdict(list)
    for number, stamps in times.items():
        if all(name in stamps for name in NAMES):
            found[models[number]].append([stamps[name] for name in NAMES])
    return {model: _traced(model, rows) for model, rows in found.items()}


def _read_entries(
    entries: list[dict[str, Any]],
) -> tuple[dict[int, str], dict[int, dict[str, int]]]:
    """Return the model and the times of each request, by its number."""
    models: dict[int, str] = {}
    times: defaultdict[int, dict[str, int]] = defaultdict(dict)
    for entry in entries:
        number = entry["id"]
        if "model_name" in entry:
            models[number] = entry["model_name"]
        for stamp in entry.get("timestamps", ()):
            times[number][stamp["name"]] = stamp["ns"]
    return {number: models[number] for number in times}, times


def _traced(model: str, rows: list[list[int]]) -> Traced:
    ordered = np.array(sorted(rows), np.float64).T / 1e9
    return Traced(model, *ordered)
