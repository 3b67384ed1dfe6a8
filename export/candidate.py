"""A candidate: one exported variant of one training run, and how it was measured."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar


class Stage(Protocol):
    """How far a variant is from the model that was trained."""

    @property
    def name(self) -> str:
        """The name of the candidate."""
        ...

    @property
    def score(self) -> float | None:
        """Its metric on the test split; None where it was not measured."""
        ...

    @property
    def loss(self) -> float | None:
        """What it lost of the metric, relative: 0.01 is one percent; None if not measured."""
        ...

    @property
    def is_finite(self) -> bool:
        """Whether all its answers are finite, as far as that was measured."""
        ...


class Speed(Protocol):
    """How fast a variant answers on this machine, with the threads that serving uses."""

    @property
    def latency_ms(self) -> float:
        """Milliseconds until a client that is alone has an answer."""
        ...

    @property
    def per_second(self) -> float:
        """Rows or tokens per second at full load."""
        ...


S = TypeVar("S", bound=Stage)
P = TypeVar("P", bound=Speed)


@dataclass(frozen=True)
class Candidate(Generic[S, P]):
    """One variant of the model.

    Attributes:
        name: of the variant: `onnx-fp32`, `openvino-int8`, …
        path: its file or folder; None if it could not be made.
        digest: sha256 of the file, or over the files of the folder.
        size_bytes: of all its files.
        speed: on this machine.
        stage: its distance from the model that was trained.
        reason: why it is refused; None if it passes its gates.
        notes: how it was found, where that took a search.
        is_served: whether a Triton backend here serves it. If not, it is measured to compare the
            others with, and never chosen.
    """

    name: str
    path: Path | None = None
    digest: str = ""
    size_bytes: int = 0
    speed: P | None = None
    stage: S | None = None
    reason: str | None = None
    notes: tuple[str, ...] = ()
    is_served: bool = True

    @property
    def passed(self) -> bool:
        """Whether it passes its gates."""
        return self.reason is None


AnyCandidate = Candidate[Any, Any]
