"""A closed-loop load generator: each client waits for an answer before its next request."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tritonclient.grpc import aio
from tritonclient.utils import InferenceServerException

from millrace.models.common.errors import InputError
from millrace.models.common.installation import Endpoint
from millrace.serving.triton.channel import channel_options
from millrace.serving.triton.client import PREDICT_SECONDS, to_input


@dataclass(frozen=True)
class LoadReport:
    """The result of a load run.

    Attributes:
        requests: number of requests answered.
        rows: number of rows answered.
        seconds: seconds from the first request to the last answer.
        p50_ms: median latency in milliseconds.
        p90_ms: 90th percentile of the latency, in milliseconds.
        p99_ms: 99th percentile of the latency, in milliseconds.
        errors: number of requests that failed.
    """

    requests: int
    rows: int
    seconds: float
    p50_ms: float
    p90_ms: float
    p99_ms: float
    errors: int

    @property
    def requests_per_second(self) -> float:
        """Requests answered per second."""
        return self.requests / self.seconds

    @property
    def rows_per_second(self) -> float:
        """Rows answered per second."""
        return self.rows / self.seconds


def measure(
    endpoint: Endpoint,
    model: str,
    inputs: Mapping[str, npt.NDArray[Any]],
    *,
    clients: int,
    seconds: float,
) -> LoadReport:
    """Send the same request from a number of clients at once, and measure the latency.

    All clients share one event loop and one connection. Do not call this from a running event loop.

    Args:
        endpoint: the server.
        model: a model that is loaded.
        inputs: the arrays of the request by input name, with the batch as first dimension.
        clients: the number of requests in flight at any time.
        seconds: how long new requests are sent, in seconds.

    Raises:
        InputError: `clients` or `seconds` is not positive.
    """
    if clients < 1 or seconds <= 0:
        raise InputError(
            "a load run needs at least one client and a duration above 0",
            seen=f"clients={clients}, seconds={seconds}",
            valid="positive numbers",
        )
    latencies, errors, elapsed = asyncio.run(
        _run_clients(endpoint, model, inputs, clients, seconds)
    )
    rows = len(next(iter(inputs.values())))
    p50, p90, p99 = np.percentile(latencies or [float("nan")], (50, 90, 99)) * 1e3
    return LoadReport(
        requests=len(latencies),
        rows=rows * len(latencies),
        seconds=elapsed,
        p50_ms=float(p50),
        p90_ms=float(p90),
        p99_ms=float(p99),
        errors=errors,
    )


async def _run_clients(
    endpoint: Endpoint,
    model: str,
    inputs: Mapping[str, npt.NDArray[Any]],
    clients: int,
    seconds: float,
) -> tuple[list[float], int, float]:
    latencies: list[float] = []
    tensors = [to_input(name, array) for name, array in inputs.items()]
    async with aio.InferenceServerClient(
        endpoint.grpc, channel_args=list(channel_options(endpoint))
    ) as connection:
        begin = time.perf_counter()
        deadline = begin + seconds

        async def client() -> int:
            errors = 0
            while (start := time.perf_counter()) < deadline:
                try:
                    await connection.infer(model, tensors, client_timeout=PREDICT_SECONDS)
                    latencies.append(time.perf_counter() - start)
                except InferenceServerException:
                    errors += 1
            return errors

        errors = await asyncio.gather(*(client() for _ in range(clients)))
        elapsed = time.perf_counter() - begin
    return latencies, sum(errors), elapsed
