"""The golden batch of a graph: what it must answer, in batches of any size and row by row."""

from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO

import numpy as np

from millrace.models.common.arrays import Array
from millrace.models.common.errors import MillraceError, TransientError, WorkError
from millrace.models.common.subprocess_runner import run_in_subprocess
from millrace.models.inference.row_batches import golden_requests
from millrace.serving.release.trial import alone_limits
from millrace.serving.triton.client import TritonClient
from millrace.serving.triton.onnx_graph import signature_of
from millrace.serving.triton.version_folder import ONNX, Artifact

TOLERANCE = 1e-4
"""Of the largest answer, and of 1 where all answers are smaller: float32 rounds relatively."""


@dataclass(frozen=True)
class GoldenBatch:
    """What a version must answer; an `Expected`.

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

    def part(self, rows: slice | Array) -> dict[str, Array]:
        """Return some rows of the inputs."""
        return {name: array[rows] for name, array in self.inputs.items()}

    def try_alone(self, artifact: Artifact) -> None:
        """Open the file in a process of its own and answer the golden batch once."""
        run_in_subprocess(
            "millrace.serving.triton.load_check",
            [artifact.files[ONNX]],
            alone_limits(artifact.size_bytes),
            what="loading and answering",
            stdin=_npz(self.graph_inputs),
        )

    def validate_alone(self, artifact: Artifact) -> float:
        """Do the same and compare the answers, in one batch.

        Raises:
            WorkError: an answer is not finite, or differs by more than the tolerance.
            TransientError: its process was killed.
        """
        told = run_in_subprocess(
            "millrace.serving.triton.load_check",
            [artifact.files[ONNX], *self.answers],
            alone_limits(artifact.size_bytes),
            what="loading and answering",
            stdin=_npz(self.graph_inputs),
        )
        with np.load(BytesIO(told), allow_pickle=False) as got:
            found = [
                _difference(output, got.get(output), answers)
                for output, answers in self.answers.items()
            ]
        return self._admitted(max(found, default=0.0))

    def compare(
        self, client: TritonClient, name: str, artifact: Artifact, version: int | None = None
    ) -> float:
        """Send the golden batch, in batches and row by row, and return the largest difference.

        Raises:
            WorkError: an answer is not finite, or differs by more than the tolerance.
            TransientError: the replica went away.
        """
        largest = 0.0
        batch = batch_of(artifact)
        whole: list[slice | Array] = [slice(None)]
        parts = whole if batch is None else golden_requests(self.rows, batch)
        for part in parts:
            got = _answer(client, name, self.part(part), version)
            for output, answers in self.answers.items():
                largest = max(largest, _difference(output, got.get(output), answers[part]))
        return self._admitted(largest)

    def _admitted(self, largest: float) -> float:
        """Return a difference that the certificate admits; WorkError if it does not."""
        allowed = self.difference + TOLERANCE * self.scale
        if not largest <= allowed:
            raise WorkError(
                "its answers differ from those of its certificate",
                seen=f"largest difference {largest:.2e} on the golden batch",
                valid=f"at most {allowed:.2e}, row by row as in a batch",
            )
        return largest

    def ask(
        self, client: TritonClient, name: str, artifact: Artifact, version: int | None = None
    ) -> None:
        """Send one row, or the golden batch to a graph that takes it only as it is."""
        _answer(client, name, self._least(artifact), version)

    def ping(
        self, client: TritonClient, name: str, artifact: Artifact, version: int, seconds: float
    ) -> None:
        """Send the same; a rollout does not count it."""
        least = self._least(artifact)
        client.predict(name, least, version=version, timeout=seconds, probe=True)

    def _least(self, artifact: Artifact) -> dict[str, Array]:
        return self.part(slice(None if batch_of(artifact) is None else 1))


def batch_of(artifact: Artifact) -> int | None:
    """Return the rows that a request to a version may have; None if its batch is fixed."""
    return artifact.serving.max_batch_size if signature_of(artifact).batches else None


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


def _npz(inputs: Mapping[str, Array]) -> bytes:
    buffer = BytesIO()
    # text as numpy's own kind: an array of objects would be pickled
    plain = {k: v.astype(str) if v.dtype == object else v for k, v in inputs.items()}
    np.savez(buffer, **plain)
    return buffer.getvalue()
