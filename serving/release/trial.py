"""Trying a version before it takes traffic, within limits and where no client reaches it.

First the file alone, in a process of its own with limits on time and memory: what hangs or crashes
takes nothing with it. Then on the replica, under a name that nobody knows, beside the version that
serves. A trial that is interrupted leaves a model and a folder with `TRIAL` in their names, which
the next plan sweeps.
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
from millrace.models.inference.language_engine import EngineName
from millrace.serving.release.version_check import Expected
from millrace.serving.triton.client import TritonClient
from millrace.serving.triton.language import vllm_config
from millrace.serving.triton.model_config import latest
from millrace.serving.triton.repository import Repository
from millrace.serving.triton.server_index import TRIAL
from millrace.serving.triton.version_config import config_of
from millrace.serving.triton.version_folder import Artifact

ALONE = Limits(seconds=60.0, memory=16 << 30)
"""Of the smallest model; a larger one has more of both. Less memory where the machine has less."""
SHARE, MOST_SHARE = 0.5, 0.75
"""Of the machine's memory: for the smallest model, and for any. The rest is for what serves."""
LEAST = 4 << 30
"""Of address space, of which ONNX Runtime and OpenVINO reserve more than they use."""
BYTES_PER_SECOND = 16 << 20
"""What a model is given time for beyond that: a slow disk, and as many operations as weights."""
COPIES = 4
"""Of the weights in memory: the file, the graph, its optimized form, what is unpacked."""
LOAD_SECONDS = 120.0
ENGINE_SECONDS = 400.0
"""With an accelerator, which builds its engines while the version loads and warms up; vLLM compiles
too.
"""


def alone_limits(size: int) -> Limits:
    """Return what a model of so many bytes may take to be opened and to answer once."""
    return Limits(ALONE.seconds + size / BYTES_PER_SECOND, memory_limit(size, memory_bytes()))


def memory_limit(size: int, machine: int) -> int:
    """Return the bytes that a trial of a model of so many bytes may take on such a machine."""
    wanted = min(ALONE.memory, int(SHARE * machine)) + COPIES * size
    return max(LEAST, min(wanted, int(MOST_SHARE * machine)))


def load_seconds(serving: ServingSpec, size: int, engine: EngineName | None = None) -> float:
    """Return how long a version, a model of so many bytes, may take to load.

    Args:
        serving: how it is served.
        size: bytes of the model.
        engine: of a language model.
    """
    builds = serving.accelerator is not None or engine == "vllm"
    return (ENGINE_SECONDS if builds else LOAD_SECONDS) + size / BYTES_PER_SECOND


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


ABSENT = "unable to find backend library"
"""What Triton says of a backend that it does not have."""


def require_backend(artifact: Artifact, client: TritonClient) -> None:
    """Raise if a server cannot serve a version for want of its backend.

    Only vLLM's is asked for: the others come with the server, or with any. Triton lists no
    backends, so it is told to load a model without files, which always fails: where the backend is,
    for want of the files.

    Raises:
        WorkError: it has no such backend.
        TransientError: the server cannot be reached.
    """
    if artifact.engine != vllm_config.BACKEND:
        return
    name = f"{vllm_config.BACKEND}{TRIAL}{token_hex(4)}"
    try:
        client.load_without_files(name, json.dumps({"backend": vllm_config.BACKEND}))
    except WorkError as error:
        if ABSENT not in str(error.seen):
            return
        raise WorkError(
            "this Triton has no vllm backend, which the version's form needs",
            seen=f"the server at {client.endpoint.grpc}",
            valid="NVIDIA's container for vLLM (tritonserver:…-vllm-python-py3), on a GPU",
            hint="name such a server in MILLRACE_TRITON, or export an openvino form",
        ) from error
