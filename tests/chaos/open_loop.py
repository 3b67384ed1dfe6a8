"""Open-loop Poisson load: requests come when they come, whether or not earlier ones are answered.

Latency counts from the moment a request was due, so that a stall is not hidden by the requests
that were not sent during it (Gil Tene's "coordinated omission").
"""

import asyncio
import json
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from tritonclient.grpc import aio

from millrace.models.inference.features import FEATURES
from millrace.serving.triton.client import to_input
from tests.integration.planted import GOLDEN, softmax, weights_of


@dataclass
class Seen:
    """What the load saw.

    Attributes:
        latencies_ms: of every answer, from the moment it was due.
        failed: texts of errors, and how often.
        wrong: answers that are not those of the version that claims them.
        by_version: answers of each version.
    """

    latencies_ms: list[float] = field(default_factory=list)
    failed: Counter[str] = field(default_factory=Counter)
    wrong: int = 0
    by_version: Counter[str] = field(default_factory=Counter)


async def load(address: str, model: str, seeds: dict[str, int], rate: float, requests: int) -> Seen:
    """Send so many requests of one golden row at `rate` a second on average.

    Args:
        address: host and port of gRPC.
        model: the model; requests name no version.
        seeds: of the weights of each version that may answer.
        rate: requests a second.
        requests: how many.
    """
    seen, rng = Seen(), np.random.default_rng(5)
    expected = {v: softmax(GOLDEN @ weights_of(seed)) for v, seed in seeds.items()}
    tensors = [[to_input(FEATURES, GOLDEN[row : row + 1])] for row in range(len(GOLDEN))]
    due = np.cumsum(rng.exponential(1 / rate, requests))
    async with aio.InferenceServerClient(address) as client:
        start, under_way = time.perf_counter(), set()
        for number, moment in enumerate(due):
            if (wait := start + moment - time.perf_counter()) > 0:
                await asyncio.sleep(wait)
            row = number % len(GOLDEN)
            task = asyncio.ensure_future(
                _ask(client, model, tensors[row], row, expected, start + moment, seen)
            )
            under_way.add(task)
            task.add_done_callback(under_way.discard)
        await asyncio.gather(*under_way)
    return seen


async def _ask(
    client: Any,
    model: str,
    tensors: list[Any],
    row: int,
    expected: dict[str, np.ndarray],
    due: float,
    seen: Seen,
) -> None:
    try:
        result = await client.infer(model, tensors)
    except Exception as error:
        seen.failed[str(error)[:200]] += 1
        return
    seen.latencies_ms.append((time.perf_counter() - due) * 1000)
    version = result.get_response().model_version
    seen.by_version[version] += 1
    right = expected.get(version)
    got = result.as_numpy("probabilities")
    seen.wrong += right is None or not np.allclose(got, right[row : row + 1], atol=1e-5)


def main() -> None:
    address, model, seeds, rate, requests, out = sys.argv[1:]
    seen = asyncio.run(load(address, model, json.loads(seeds), float(rate), int(requests)))
    Path(out).write_text(json.dumps(vars(seen)))


if __name__ == "__main__":
    main()
