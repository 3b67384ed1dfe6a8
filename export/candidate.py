"""A candidate: one exported variant of a trained model, with its measurements."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar


class Stage(Protocol):
    """The differences of a variant from the trained model."""

    @property
    def name(self) -> str:
        """The candidate's name."""
        ...

    @property
    def score(self) -> float | None:
        """The metric on the test split; None if it was not measured."""
        ...

    @property
    def loss(self) -> float | None:
        """The relative loss of the metric: 0.01 is one percent; None if not measured."""
        ...

    @property
    def is_finite(self) -> bool:
        """Whether all measured outputs are finite."""
        ...


class Speed(Protocol):
    """The speed of a variant on this machine, measured with as many threads as serving uses."""

    @property
    def latency_ms(self) -> float:
        """Milliseconds of one request when no other request is running."""
        ...

    @property
    def per_second(self) -> float:
        """Rows or tokens per second at full load."""
        ...

    @property
    def other_load(self) -> float:
        """Share of the cores that other programs took while it was measured."""
        ...


S = TypeVar("S", bound=Stage)
P = TypeVar("P", bound=Speed)


@dataclass(frozen=True)
class Candidate(Generic[S, P]):
    """One variant of the model, with its measurements.

    Attributes:
        name: name of the variant: `onnx-fp32`, `openvino-int8`, …
        path: its file or folder; None if the variant could not be made.
        digest: sha256 of the file, or over the files of the folder.
        size_bytes: size of all its files.
        speed: its speed on this machine; None if it was not measured.
        stage: its differences from the trained model; None if it was not measured.
        reason: why it is refused; None if it passes its gates.
        notes: log of the search that found the variant; empty if it needed no search.
        is_served: whether a Triton backend here can serve it. If not, it is measured only for
            comparison, and never chosen.
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
