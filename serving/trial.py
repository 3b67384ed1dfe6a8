"""Trying a version before it takes traffic, where no client reaches it.

First the file alone, in a process of its own with limits on time and memory: what hangs or crashes
takes nothing with it. Then on the replica, under a name that nobody knows, beside the version that
serves. A trial that is interrupted leaves a model and a folder with `TRIAL` in their names, which
the next plan sweeps.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from secrets import token_hex

import numpy as np

from models.apart import Limits, run_apart
from models.arrays import Array
from models.errors import MillraceError, TransientError, WorkError
from models.pieces import golden_requests
from models.specs.serving import ServingSpec
from serving.client import TritonClient
from serving.config import latest, model_config
from serving.names import TRIAL
from serving.repository import Repository

ALONE = Limits(seconds=60.0, memory=16 << 30)
LOAD_SECONDS = 120.0
ENGINE_SECONDS = 400.0
"""With an accelerator, which builds its engines while the version loads and warms up."""
PROBE_SECONDS = 2.0
PROBE_REQUESTS = 200
PROBES = 3
"""A probe that is too slow is done again: the moment may have been busy, and a refusal stays."""
TOLERANCE = 1e-4
"""Of the largest answer, and of 1 where all answers are smaller: float32 rounds relatively."""


@dataclass(frozen=True)
class Expected:
    """What a version must answer.

    Attributes:
        inputs: the golden batch as a client sends it, `[rows, …]` for each input.
        graph_inputs: as the graph reads it.
        answers: PyTorch's answers to it, `[rows, …]` for each output that is compared.
        difference: largest difference from them that its certificate admits.
        latency_slo_ms: p99 of one row that the probe must hold; None for any.
        caution: what a reader of the evidence should know; empty for nothing.
    """

    inputs: Mapping[str, Array]
    graph_inputs: Mapping[str, Array]
    answers: Mapping[str, Array]
    difference: float
    latency_slo_ms: float | None = None
    caution: str = ""

    @property
    def rows(self) -> int:
        """Rows of the golden batch."""
        return len(next(iter(self.inputs.values())))

    @property
    def scale(self) -> float:
        """The largest answer, or 1 where all are smaller."""
        largest = [float(np.abs(each).max(initial=0.0)) for each in self.answers.values()]
        return max([1.0, *largest])

    def part(self, rows: slice) -> dict[str, Array]:
        """Return some rows of the inputs."""
        return {name: array[rows] for name, array in self.inputs.items()}


@dataclass(frozen=True)
class Evidence:
    """What a trial measured.

    Attributes:
        difference: largest difference from PyTorch's answers, in a batch and row by row.
        p50_ms: median latency of a request of one row, milliseconds; so p99_ms.
        requests: requests of the probe.
    """

    difference: float
    p50_ms: float
    p99_ms: float
    requests: int


def try_alone(onnx: Path, expected: Expected) -> None:
    """Open the file in a process of its own and answer the golden batch once.

    Raises:
        WorkError: it cannot be opened, crashes, takes too long or too much memory.
        TransientError: its process was killed.
    """
    rows = _npz(expected.graph_inputs)
    run_apart("serving.alone", [onnx], ALONE, what="loading and answering", stdin=rows)


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
        batch = batch_of(repository, model, version)
        difference = compare(client, name, expected, batch)
        row, slo = expected.part(slice(None if batch is None else 1)), expected.latency_slo_ms
        for _ in range(PROBES):
            times = _probe(client, name, row)
            p50, p99 = (float(np.quantile(times, share)) * 1000 for share in (0.5, 0.99))
            if slo is None or p99 <= slo:
                break
    if slo is not None and p99 > slo:
        raise WorkError(
            "it is too slow",
            seen=f"p99 {p99:.2f} ms in {len(times)} requests of one row",
            valid=f"serving.latency_slo_ms, {slo:g} ms",
        )
    return Evidence(difference, p50, p99, len(times))


def compare(
    client: TritonClient,
    name: str,
    expected: Expected,
    batch: int | None,
    version: int | None = None,
) -> float:
    """Send the golden batch, in batches and row by row, and return the largest difference.

    Args:
        client: the replica.
        name: the model, by the name under which it is loaded there.
        expected: what it must answer.
        batch: rows of a request, at most; None for a graph that takes the golden batch as it is.
        version: a version of it, or None for the one that answers by default.

    Raises:
        WorkError: an answer is not finite, or differs by more than the tolerance.
        TransientError: the replica went away.
    """
    largest = 0.0
    parts = [slice(None)] if batch is None else golden_requests(expected.rows, batch)
    for part in parts:
        got = _answer(client, name, expected.part(part), version)
        for output, answers in expected.answers.items():
            largest = max(largest, _difference(output, got.get(output), answers[part]))
    allowed = expected.difference + TOLERANCE * expected.scale
    if not largest <= allowed:
        raise WorkError(
            "its answers differ from those of its certificate",
            seen=f"largest difference {largest:.2e} on the golden batch",
            valid=f"at most {allowed:.2e}, row by row as in a batch",
        )
    return largest


def load_seconds(serving: ServingSpec) -> float:
    """Return how long a version may take to load."""
    return LOAD_SECONDS if serving.accelerator is None else ENGINE_SECONDS


def batch_of(repository: Repository, model: str, version: int) -> int | None:
    """Return the rows that a request to a staged version may have; None if its batch is fixed."""
    if not repository.signature(model, version).batches:
        return None
    return repository.artifact(model, version).serving.max_batch_size


def _difference(output: str, got: Array | None, answers: Array) -> float:
    """Return the largest difference of one output.

    Raises:
        WorkError: it is not there, has another shape, or is not finite.
    """
    if got is None:
        raise WorkError("it does not give the output that was certified", valid=output)
    if got.shape != answers.shape:
        raise WorkError(
            f"its output {output} has another shape", seen=got.shape, valid=answers.shape
        )
    if not np.isfinite(got).all():
        raise WorkError("its answers are not finite", seen="NaN or infinity", valid="numbers")
    return float(np.abs(got.astype(np.float64) - answers).max(initial=0.0))


def _answer(
    client: TritonClient, name: str, inputs: Mapping[str, Array], version: int | None = None
) -> dict[str, Array]:
    try:
        return client.predict(name, inputs, version=version)
    except TransientError:
        if client.is_ready():  # it is the model that went away, not the server
            raise WorkError("it stopped answering", hint="see Triton's log") from None
        raise
    except MillraceError as error:
        raise WorkError(
            "it did not answer its golden batch", seen=error.seen or error.what, valid=error.valid
        ) from error


def _probe(client: TritonClient, name: str, row: Mapping[str, Array]) -> list[float]:
    """Return the seconds of requests of one row, one after the other."""
    times: list[float] = []
    until = time.perf_counter() + PROBE_SECONDS
    while len(times) < PROBE_REQUESTS and (not times or time.perf_counter() < until):
        start = time.perf_counter()
        _answer(client, name, row)
        times.append(time.perf_counter() - start)
    return times


@contextmanager
def _loaded(
    model: str, version: int, repository: Repository, client: TritonClient
) -> Iterator[str]:
    """Load a staged version under a name of its own for the length of the block."""
    name = f"{model}{TRIAL}{version}-{token_hex(4)}"
    artifact, signature = repository.artifact(model, version), repository.signature(model, version)
    config = model_config(
        name,
        signature,
        artifact.serving,
        version_policy=latest(),
        labels=artifact.labels,
    )
    try:
        repository.link(model, version, name, 1)
        repository.write_config(config, artifact.labels)
        client.load(name, timeout=load_seconds(artifact.serving))
        yield name
    finally:
        with suppress(MillraceError):
            client.unload(name)
        repository.remove_model(name)


def _npz(inputs: Mapping[str, Array]) -> bytes:
    buffer = BytesIO()
    # text as numpy's own kind: an array of objects would be pickled
    plain = {k: v.astype(str) if v.dtype == object else v for k, v in inputs.items()}
    np.savez(buffer, **plain)
    return buffer.getvalue()
