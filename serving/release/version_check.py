"""What a version must answer before it takes traffic, whatever kind of model it is."""

from typing import Protocol

from millrace.serving.triton.client import TritonClient
from millrace.serving.triton.version_folder import Artifact


class Expected(Protocol):
    """What a version was certified to answer, and how it is asked."""

    @property
    def latency_slo_ms(self) -> float | None:
        """p99 of `ask` that the probe must hold, milliseconds; None for any."""
        ...

    @property
    def caution(self) -> str:
        """What a reader of the evidence should know; empty for nothing."""
        ...

    def try_alone(self, artifact: Artifact) -> None:
        """Open the model in a process of its own and let it answer once.

        Raises:
            WorkError: it cannot be opened, crashes, takes too long or too much memory.
            TransientError: its process was killed.
        """
        ...

    def validate_alone(self, artifact: Artifact) -> float:
        """Do the same with all that is certified, and return the largest difference.

        It is for a process that has no server. What it needs a server for is left out: answers in
        other company, and latency.

        Raises:
            WorkError: as `try_alone`; or an answer differs by more than the certificate admits.
            TransientError: its process was killed.
        """
        ...

    def compare(
        self, client: TritonClient, name: str, artifact: Artifact, version: int | None = None
    ) -> float:
        """Ask everything that is certified of a loaded model, and return the largest difference.

        Args:
            client: the replica.
            name: the model, by the name under which it is loaded there.
            artifact: what was staged.
            version: a version of it, or None for the one that answers by default.

        Raises:
            WorkError: an answer is none, or differs by more than the certificate admits.
            TransientError: the replica went away.
        """
        ...

    def ask(
        self,
        client: TritonClient,
        name: str,
        artifact: Artifact,
        version: int | None = None,
    ) -> None:
        """Ask for as little as can be asked.

        Raises:
            WorkError: it does not answer.
            TransientError: the replica went away.
        """
        ...

    def ping(
        self, client: TritonClient, name: str, artifact: Artifact, version: int, seconds: float
    ) -> None:
        """Ask the same only to see whether anything answers, and wait so long at most.

        Raises:
            MillraceError: nothing does.
        """
        ...
