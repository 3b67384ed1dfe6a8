"""The trial of a version before it gets traffic, with resource limits and hidden from clients.

First its files are opened in a subprocess with limits on time and memory, so that a model that
hangs or crashes affects nothing else. Then the version is loaded on a replica, under a name that
no client knows, beside the version that serves. An interrupted trial leaves a model and a folder
with `TRIAL` in their names, which the next release removes.
"""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from secrets import token_hex

import numpy as np

from millrace.models.common.errors import MillraceError, WorkError
from millrace.models.common.hardware import memory_bytes
from millrace.models.common.subprocess_runner import Limits
from millrace.models.config.serving_spec import ServingSpec
from millrace.serving.release.version_check import VersionCheck
from millrace.serving.triton.client import TritonClient
from millrace.serving.triton.model_config import latest
from millrace.serving.triton.repository import Repository
from millrace.serving.triton.server_index import TRIAL
from millrace.serving.triton.version_config import config_of, triton_kind
from millrace.serving.triton.version_folder import Artifact

BASE_LIMITS = Limits(seconds=60.0, memory=16 << 30)
"""Limits for the smallest model. Larger models get more; small machines get less memory."""
MEMORY_SHARE, MAX_MEMORY_SHARE = 0.5, 0.75
"""Largest share of the machine's memory for the smallest model, and for a model of any size.

Servers need the rest.
"""
MIN_MEMORY = 4 << 30
"""Smallest limit, in bytes: ONNX Runtime and OpenVINO reserve more address space than they use."""
BYTES_PER_SECOND = 16 << 20
"""A trial gets one more second for this many bytes of the model, because disks may be slow and some
operations take time in proportion to the weights.
"""
WEIGHT_COPIES = 4
"""Copies of the weights in memory: the file, the graph, the optimized graph, unpacked weights."""
LOAD_SECONDS = 120.0
ENGINE_SECONDS = 400.0
"""Load limit if the accelerator builds an engine, or vLLM compiles, while the version loads."""


def subprocess_limits(size: int) -> Limits:
    """Return the limits of a subprocess that opens and runs a model of `size` bytes."""
    return Limits(BASE_LIMITS.seconds + size / BYTES_PER_SECOND, memory_limit(size, memory_bytes()))


def memory_limit(size: int, machine: int) -> int:
    """Return the memory limit of a trial, in bytes.

    Args:
        size: bytes of the model.
        machine: bytes of the machine's memory.
    """
    wanted = min(BASE_LIMITS.memory, int(MEMORY_SHARE * machine)) + WEIGHT_COPIES * size
    return max(MIN_MEMORY, min(wanted, int(MAX_MEMORY_SHARE * machine)))


def load_seconds(serving: ServingSpec, size: int, *, compiles: bool = False) -> float:
    """Return how many seconds a version may take to load.

    Args:
        serving: the version's serving settings.
        size: bytes of the model.
        compiles: whether the backend compiles the model.
    """
    builds = serving.accelerator is not None or compiles
    return (ENGINE_SECONDS if builds else LOAD_SECONDS) + size / BYTES_PER_SECOND


PROBE_SECONDS = 2.0
PROBE_REQUESTS = 200
MAX_PROBES = 3
"""A probe that is too slow is repeated, because the machine may be busy and a refusal is final."""


@dataclass(frozen=True)
class TrialResult:
    """The measurements of a trial.

    Attributes:
        difference: largest difference from the certified answers.
        p50_ms: median latency of the smallest request (one row or one token), in milliseconds.
        p99_ms: 99th percentile of that latency.
        requests: number of requests of the probe.
    """

    difference: float
    p50_ms: float
    p99_ms: float
    requests: int


def validate_on_replica(
    model: str,
    version: int,
    repository: Repository,
    client: TritonClient,
    check: VersionCheck,
) -> TrialResult:
    """Load a staged version as a helper model, and measure its answers and its latency.

    Raises:
        WorkError: the model was not loaded, its answers differ or are not finite, or it is too
            slow.
        TransientError: the replica went away.
    """
    with _load_helper_model(model, version, repository, client) as name:
        artifact, slo = repository.artifact(model, version), check.latency_slo_ms
        difference = check.compare(client, name, artifact)
        for _ in range(MAX_PROBES):
            times = _probe(lambda: check.send_smallest(client, name, artifact))
            p50, p99 = (float(np.quantile(times, share)) * 1000 for share in (0.5, 0.99))
            if slo is None or p99 <= slo:
                break
    if slo is not None and p99 > slo:
        raise WorkError(
            "the model is too slow",
            seen=f"p99 {p99:.2f} ms in {len(times)} requests of one row or token",
            valid=f"at most serving.latency_slo_ms, {slo:g} ms",
        )
    return TrialResult(difference, p50, p99, len(times))


def _probe(send: Callable[[], None]) -> list[float]:
    """Send the smallest request repeatedly, and return the seconds of each."""
    times: list[float] = []
    deadline = time.perf_counter() + PROBE_SECONDS
    while len(times) < PROBE_REQUESTS and (not times or time.perf_counter() < deadline):
        start = time.perf_counter()
        send()
        times.append(time.perf_counter() - start)
    return times


@contextmanager
def _load_helper_model(
    model: str, version: int, repository: Repository, client: TritonClient
) -> Iterator[str]:
    """Load a staged version as a helper model while the block runs, and yield that model's name."""
    name = f"{model}{TRIAL}{version}-{token_hex(4)}"
    artifact = repository.artifact(model, version)
    config = config_of(name, artifact, version_policy=latest())
    try:
        repository.link(model, version, name, 1)
        repository.write_config(config, artifact.labels)
        compiles = triton_kind(artifact).special_backend(artifact) is not None
        seconds = load_seconds(artifact.serving, artifact.size_bytes, compiles=compiles)
        client.load(name, timeout=seconds)
        yield name
    finally:
        with suppress(MillraceError):
            client.unload(name)
        repository.remove_model(name)


NO_BACKEND = "unable to find backend library"
"""Part of Triton's error message for a backend that is not installed."""


def require_backend(artifact: Artifact, client: TritonClient) -> None:
    """Raise if a server does not have a version's backend.

    Only a backend that some servers lack is checked. Triton does not list its backends, so a model
    without files is loaded. That always fails, and the error shows whether the backend or only the
    files are missing.

    Raises:
        WorkError: the server does not have the backend.
        TransientError: the server cannot be reached.
    """
    backend = triton_kind(artifact).special_backend(artifact)
    if backend is None:
        return
    name = f"{backend}{TRIAL}{token_hex(4)}"
    try:
        client.load_without_files(name, json.dumps({"backend": backend}))
    except WorkError as error:
        if NO_BACKEND not in str(error.seen):
            return
        raise WorkError(
            f"this Triton has no {backend} backend, which the version needs",
            seen=f"the server at {client.endpoint}",
            valid=f"NVIDIA's container with the backend {backend}, on a GPU "
            f"(tritonserver:…-{backend}-python-py3)",
            hint="set MILLRACE_TRITON to such a server, or export another variant",
        ) from error
