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
        """Limit of the p99 latency of `send_smallest`, in milliseconds; None: no limit."""

    @property
    def caution(self) -> str:
        """What a reader of the evidence should know; may be empty."""

    def smoke_test(self, artifact: Artifact) -> None:
        """Open the model in a subprocess, and request one answer.

        Raises:
            WorkError: the model cannot be opened, crashes, or exceeds the time or memory limit.
            TransientError: the subprocess was killed.
        """

    def validate_in_subprocess(self, artifact: Artifact) -> float:
        """Compare all certified answers in a subprocess, and return the largest difference.

        There is no server, so neither the latency nor the answers to concurrent requests are
        checked.

        Raises:
            WorkError: as `smoke_test`; or an answer differs by more than the certificate allows.
            TransientError: the subprocess was killed.
        """

    def compare(
        self, client: TritonClient, name: str, artifact: Artifact, version: int | None = None
    ) -> float:
        """Compare all certified answers with a loaded model's, and return the largest difference.

        Args:
            client: the replica.
            name: the name under which the model is loaded there.
            artifact: the staged version.
            version: the version to send requests to; None: the one that answers by default.

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
        """Check that the version answers within `seconds`.

        Raises:
            MillraceError: the version does not answer in time.
        """


@contextmanager
def translate_errors(client: TritonClient, golden: str) -> Iterator[None]:
    """Turn the error of a request into a WorkError of the version, or a TransientError.

    Args:
        client: the replica.
        golden: name of the certified requests, for the message.

    Raises:
        WorkError: the version is at fault.
        TransientError: the replica went away, or is too busy.
    """
    try:
        yield
    except TransientError:
        if client.is_ready():  # the model stopped answering, not the server
            raise WorkError("the model stopped answering", hint="see Triton's log") from None
        raise
    except MillraceError as error:
        raise WorkError(
            f"the model did not answer its {golden}",
            seen=error.seen or error.what,
            valid=error.valid,
        ) from error
