"""The check that a version must pass before it takes traffic, whatever kind of model it is."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from millrace.models.common.errors import MillraceError, TransientError, WorkError
from millrace.serving.triton.client import TritonClient
from millrace.serving.triton.version_folder import Artifact


class VersionCheck(Protocol):
    """The certified answers of a version, and how to compare a model's answers with them."""

    @property
    def latency_slo_ms(self) -> float | None:
        """p99 of `send_smallest` that the probe must hold, milliseconds; None for any."""

    @property
    def caution(self) -> str:
        """What a reader of the evidence should know; may be empty."""

    def smoke_test(self, artifact: Artifact) -> None:
        """Open the model in a process of its own, and let it answer once.

        Raises:
            WorkError: it cannot be opened, crashes, takes too long or too much memory.
            TransientError: its process was killed.
        """

    def validate_in_subprocess(self, artifact: Artifact) -> float:
        """Compare all certified answers in a process of its own, and return the largest difference.

        It needs no server, so it measures neither the latency nor the answers to concurrent
        requests.

        Raises:
            WorkError: as `smoke_test`; or an answer differs by more than the certificate allows.
            TransientError: its process was killed.
        """

    def compare(
        self, client: TritonClient, name: str, artifact: Artifact, version: int | None = None
    ) -> float:
        """Compare all certified answers with a loaded model's, and return the largest difference.

        Args:
            client: the replica.
            name: the name under which the model is loaded there.
            artifact: what was staged.
            version: of the model; None for the one that answers by default.

        Raises:
            WorkError: an answer is missing, or differs by more than the certificate allows.
            TransientError: the replica went away.
        """

    def send_smallest(
        self, client: TritonClient, name: str, artifact: Artifact, version: int | None = None
    ) -> None:
        """Send the smallest request: one row, or one token.

        Raises:
            WorkError: the model does not answer.
            TransientError: the replica went away.
        """

    def ping(
        self, client: TritonClient, name: str, artifact: Artifact, version: int, seconds: float
    ) -> None:
        """Check that the version answers within so many seconds.

        Raises:
            MillraceError: it does not.
        """


@contextmanager
def translate_errors(client: TritonClient, golden: str) -> Iterator[None]:
    """Turn the error of a request into the version's fault, or a transient one of the server.

    Args:
        client: the replica.
        golden: the certified requests, in words.

    Raises:
        WorkError: the version is at fault.
        TransientError: the replica went away, or is too busy.
    """
    try:
        yield
    except TransientError:
        if client.is_ready():  # the model stopped answering, not the server
            raise WorkError("it stopped answering", hint="see Triton's log") from None
        raise
    except MillraceError as error:
        raise WorkError(
            f"it did not answer its {golden}", seen=error.seen or error.what, valid=error.valid
        ) from error
