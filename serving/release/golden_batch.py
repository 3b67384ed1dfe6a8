"""The golden batch of an ONNX model: rows with certified answers, sent in batches or one by one."""

from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO

import numpy as np

from millrace.models.common.arrays import Array
from millrace.models.common.errors import WorkError
from millrace.models.common.subprocess_runner import run_in_subprocess
from millrace.models.inference.row_batches import golden_requests
from millrace.serving.release.trial import subprocess_limits
from millrace.serving.release.version_check import translate_errors
from millrace.serving.triton.client import TritonClient
from millrace.serving.triton.graph.triton_graph import signature_of
from millrace.serving.triton.version_folder import ONNX, Artifact

TOLERANCE = 1e-4
"""Allowed difference beyond that of the certificate, relative to the largest answer.

If all answers are smaller than 1, it is relative to 1.
"""


@dataclass(frozen=True)
class GoldenBatch:
    """The certified answers of an ONNX model; implements `VersionCheck`.

    Attributes:
        inputs: the golden batch as a client sends it, `[rows, …]` for each input.
        graph_inputs: the golden batch as the ONNX graph reads it.
        answers: PyTorch's answers to the golden batch, `[rows, …]` for each output to compare.
        difference: largest difference from these answers that the certificate allows.
        latency_slo_ms: limit of the p99 latency of one row, in milliseconds; None: no limit.
        caution: what a reader of the evidence should know; may be empty.
    """

    inputs: Mapping[str, Array]
    graph_inputs: Mapping[str, Array]
    answers: Mapping[str, Array]
    difference: float
    latency_slo_ms: float | None = None
    caution: str = ""

    @property
    def rows(self) -> int:
        """Number of rows of the golden batch."""
        return len(next(iter(self.inputs.values())))

    @property
    def scale(self) -> float:
        """The largest absolute answer, or 1 if all are smaller."""
        largest = [float(np.abs(each).max(initial=0.0)) for each in self.answers.values()]
        return max([1.0, *largest])

    def smoke_test(self, artifact: Artifact) -> None:
        """Run the ONNX graph of the artifact on the golden batch once, in a subprocess."""
        self._run_in_subprocess(artifact, ())

    def validate_in_subprocess(self, artifact: Artifact) -> float:
        """Run the ONNX graph of the artifact in a subprocess, and return the largest difference.

        The golden batch is sent as one batch.

        Raises:
            WorkError: an answer is not finite, or differs by more than the tolerance.
            TransientError: the subprocess was killed.
        """
        output = self._run_in_subprocess(artifact, tuple(self.answers))
        with np.load(BytesIO(output), allow_pickle=False) as actual:
            return self._require_tolerance(self._largest_difference(actual, slice(None)))

    def _run_in_subprocess(self, artifact: Artifact, outputs: tuple[str, ...]) -> bytes:
        return run_in_subprocess(
            "millrace.serving.triton.load_check",
            [artifact.files[ONNX], *outputs],
            subprocess_limits(artifact.size_bytes),
            what="loading and answering",
            stdin=_encode_npz(self.graph_inputs),
        )

    def compare(
        self, client: TritonClient, name: str, artifact: Artifact, version: int | None = None
    ) -> float:
        """Send the golden batch, in batches and row by row, and return the largest difference.

        Raises:
            WorkError: an answer is not finite, or differs by more than the tolerance.
            TransientError: the replica went away.
        """
        largest = 0.0
        batch = max_batch_rows(artifact)
        whole: list[slice | Array] = [slice(None)]
        for rows in whole if batch is None else golden_requests(self.rows, batch):
            actual = self._predict(client, name, rows, version)
            largest = max(largest, self._largest_difference(actual, rows))
        return self._require_tolerance(largest)

    def send_smallest(
        self, client: TritonClient, name: str, artifact: Artifact, version: int | None = None
    ) -> None:
        """Send one row, or the golden batch if the batch size of the ONNX graph is fixed."""
        self._predict(client, name, _smallest_rows(artifact), version)

    def ping(
        self, client: TritonClient, name: str, artifact: Artifact, version: int, seconds: float
    ) -> None:
        """Send the smallest request, marked as a probe, which a rollout does not count."""
        inputs = self._select_rows(_smallest_rows(artifact))
        client.predict(name, inputs, version=version, timeout=seconds, probe=True)

    def _select_rows(self, rows: slice | Array) -> dict[str, Array]:
        return {name: array[rows] for name, array in self.inputs.items()}

    def _predict(
        self, client: TritonClient, name: str, rows: slice | Array, version: int | None
    ) -> dict[str, Array]:
        with translate_errors(client, "golden batch"):
            return client.predict(name, self._select_rows(rows), version=version)

    def _largest_difference(self, actual: Mapping[str, Array], rows: slice | Array) -> float:
        differences = (
            _difference(output, actual.get(output), answers[rows])
            for output, answers in self.answers.items()
        )
        return max(differences, default=0.0)

    def _require_tolerance(self, largest: float) -> float:
        """Return the difference if the certificate allows it; else raise a WorkError."""
        allowed = self.difference + TOLERANCE * self.scale
        if not largest <= allowed:
            raise WorkError(
                "the model's answers differ from its certified answers",
                seen=f"largest difference {largest:.2e} on the golden batch",
                valid=f"at most {allowed:.2e}, whether rows are sent one by one or as one batch",
            )
        return largest


def max_batch_rows(artifact: Artifact) -> int | None:
    """Return the largest number of rows in a request; None if the version's batch size is fixed."""
    return artifact.serving.max_batch_size if signature_of(artifact).batches else None


def _smallest_rows(artifact: Artifact) -> slice:
    return slice(None if max_batch_rows(artifact) is None else 1)


def _difference(output: str, actual: Array | None, answers: Array) -> float:
    """Return the largest difference of one output.

    Raises:
        WorkError: the output is missing, has another shape, or is not finite.
    """
    if actual is None:
        raise WorkError(
            f"the model has no output named {output}, which was certified", valid=output
        )
    if actual.shape != answers.shape:
        raise WorkError(
            f"the model's output {output} has another shape than certified",
            seen=actual.shape,
            valid=answers.shape,
        )
    if not np.isfinite(actual).all():
        raise WorkError(
            "the model's answers are not finite", seen="NaN or infinity", valid="numbers"
        )
    return float(np.abs(actual.astype(np.float64) - answers).max(initial=0.0))


def _encode_npz(inputs: Mapping[str, Array]) -> bytes:
    buffer = BytesIO()
    # text as numpy strings, because an array of objects would be pickled
    plain = {k: v.astype(str) if v.dtype == object else v for k, v in inputs.items()}
    np.savez(buffer, **plain)
    return buffer.getvalue()
