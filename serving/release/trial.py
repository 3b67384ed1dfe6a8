"""Trying a version before it takes traffic, where no client reaches it.

First the file alone, in a process of its own with limits on time and memory: what hangs or crashes
takes nothing with it. Then on the replica, under a name that nobody knows, beside the version that
serves. A trial that is interrupted leaves a model and a folder with `TRIAL` in their names, which
the next plan sweeps.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from secrets import token_hex

import numpy as np

from millrace.models.common.errors import MillraceError, WorkError
from millrace.serving.release.trial_limits import load_seconds
from millrace.serving.release.version_check import Expected
from millrace.serving.triton.client import TritonClient
from millrace.serving.triton.model_config import latest
from millrace.serving.triton.names import TRIAL
from millrace.serving.triton.repository import Repository
from millrace.serving.triton.version_config import config_of

PROBE_SECONDS = 2.0
PROBE_REQUESTS = 200
PROBES = 3
"""A probe that is too slow is done again: the moment may have been busy, and a refusal stays."""


@dataclass(frozen=True)
class Evidence:
    """What a trial measured.

    Attributes:
        difference: largest difference from the answers that were certified.
        p50_ms: median latency of the least request, of one row or one token, milliseconds; so
            p99_ms.
        requests: requests of the probe.
    """

    difference: float
    p50_ms: float
    p99_ms: float
    requests: int


def try_on_replica(
    model: str,
    version: int,
    repository: Repository,
    client: TritonClient,
    expected: Expected,
) -> Evidence:
    """Load a staged version under a secret name, and measure its answers and its latency.

    Raises:
        WorkError: it was not loaded, its answers differ or are not finite, or it is too slow.
        TransientError: the replica went away.
    """
    with _loaded(model, version, repository, client) as name:
        artifact, slo = repository.artifact(model, version), expected.latency_slo_ms
        difference = expected.compare(client, name, artifact)
        for _ in range(PROBES):
            times = _probe(lambda: expected.ask(client, name, artifact))
            p50, p99 = (float(np.quantile(times, share)) * 1000 for share in (0.5, 0.99))
            if slo is None or p99 <= slo:
                break
    if slo is not None and p99 > slo:
        raise WorkError(
            "it is too slow",
            seen=f"p99 {p99:.2f} ms in {len(times)} requests of one row or token",
            valid=f"serving.latency_slo_ms, {slo:g} ms",
        )
    return Evidence(difference, p50, p99, len(times))


def _probe(ask: Callable[[], None]) -> list[float]:
    """Return the seconds of the least requests that there are, one after the other."""
    times: list[float] = []
    until = time.perf_counter() + PROBE_SECONDS
    while len(times) < PROBE_REQUESTS and (not times or time.perf_counter() < until):
        start = time.perf_counter()
        ask()
        times.append(time.perf_counter() - start)
    return times


@contextmanager
def _loaded(
    model: str, version: int, repository: Repository, client: TritonClient
) -> Iterator[str]:
    """Load a staged version under a name of its own for the length of the block."""
    name = f"{model}{TRIAL}{version}-{token_hex(4)}"
    artifact = repository.artifact(model, version)
    config = config_of(name, artifact, version_policy=latest())
    try:
        repository.link(model, version, name, 1)
        repository.write_config(config, artifact.labels)
        seconds = load_seconds(artifact.serving, artifact.size_bytes, artifact.engine)
        client.load(name, timeout=seconds)
        yield name
    finally:
        with suppress(MillraceError):
            client.unload(name)
        repository.remove_model(name)
