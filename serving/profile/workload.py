"""What a way of answering brings to a profile: its configurations, what is expected, real load.

A model answers at once (`batch_workload`) or streams (`stream_workload`). The profiler knows only
what is here.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from millrace.serving.profile.record import Client

T = TypeVar("T")
Values = Mapping[str, NDArray[np.float64]]
"""Seconds of each request, by the bound of the goal that they are held against; infinite without an
answer."""


class Configuration(Protocol):
    """One configuration that a version can be served with."""

    @property
    def settings(self) -> Mapping[str, int]:
        """The keys of the pipeline file's `serving`, with their values."""
        ...

    @property
    def cells(self) -> Mapping[str, str]:
        """What a table shows of it, by title of the column."""
        ...

    @property
    def group(self) -> object:
        """What differs most between configurations; one of each group is tried first."""
        ...


@dataclass(frozen=True)
class Considered:
    """A configuration, and what is known of it.

    Attributes:
        configuration: the configuration.
        at_goal: p99 that the event model expects at the goal's rate, in milliseconds, by bound.
        predicted: highest rate that it expects to stay within the bounds, in requests per second;
            0 if none does.
        measured: highest rate at which real requests did; None if none were sent.
    """

    configuration: Configuration
    at_goal: Mapping[str, float]
    predicted: float
    measured: float | None = None

    @property
    def most(self) -> float:
        """The highest rate within the bounds, as measured or else as expected."""
        return self.predicted if self.measured is None else self.measured


@dataclass(frozen=True)
class Sent:
    """What became of requests.

    Attributes:
        values: seconds of each request, by bound.
        client: what the load generator needed.
        figures: further figures in milliseconds or tokens, by name.
    """

    values: Values
    client: Client
    figures: Mapping[str, float]


class Load(Protocol):
    """What a load generator did."""

    @property
    def lateness(self) -> NDArray[np.float64]:
        """Seconds by which each request was sent late, float64 `[n]`."""
        ...

    @property
    def client_share(self) -> float:
        """Share of one core that the generator used."""
        ...


def client_of(load: Load) -> Client:
    """Return what the load generator needed."""
    lateness = max(0.0, float(np.quantile(load.lateness, 0.99)) * 1e3)
    return Client(core_share=load.client_share, lateness_p99_ms=lateness)


def never(_: Values) -> bool:
    """Send all requests."""
    return False


def never_late() -> bool:
    """Try everything."""
    return False


def late_after(seconds: float) -> Callable[[], bool]:
    """Return what tells whether so many seconds have passed from now."""
    until = time.monotonic() + seconds
    return lambda: time.monotonic() >= until


class Target(Protocol):
    """A version on a Triton that nothing else uses."""

    def serve(self, configuration: Configuration) -> None:
        """Serve the version with a configuration, and warm it up.

        Raises:
            WorkError: Triton refuses it.
        """
        ...

    def send(
        self,
        rate: float,
        requests: int,
        seed: int,
        looks: Sequence[int] = (),
        is_decided: Callable[[Values], bool] = never,
    ) -> Sent:
        """Send requests of independent clients, as the goal has them.

        Args:
            rate: requests per second.
            requests: how many.
            seed: of their times and sizes.
            looks: after how many answered requests `is_decided` is asked, ascending.
            is_decided: whether no more requests are needed.
        """
        ...


class Kept(Protocol):
    """What was measured before, so that an interrupted profile goes on from there."""

    def read(self, name: str, parse: Callable[[Any], T]) -> T | None:
        """Return what was measured; None if nothing was, or it cannot be parsed.

        Args:
            name: of the measurement.
            parse: returns it from values that JSON has; raises ValueError if they are not it.
        """
        ...

    def write(self, name: str, measured: Any) -> None:
        """Keep what was measured, as values that JSON has."""
        ...


@dataclass(frozen=True)
class Effort:
    """How much real load a profile sends to find the highest rate.

    Attributes:
        shortlist: how many configurations get real requests, beside the pipeline file's.
        probes: how many rates of each are tried.
        longest: seconds after which even the fewest requests of a probe are not waited for.
        proof_seconds: longest proof, unless even the fewest looks take longer.
    """

    shortlist: int = 3
    probes: int = 5
    longest: float = 10.0
    proof_seconds: float = 90.0


class Workload(Protocol):
    """A version with its goal."""

    @property
    def effort(self) -> Effort:
        """How much real load is sent."""
        ...

    @property
    def current(self) -> Configuration:
        """The configuration of the pipeline file."""
        ...

    def rank(self) -> list[Considered]:
        """Measure, and return what is expected of each configuration, best first.

        Raises:
            InputError: the version cannot answer such requests.
            WorkError: the version does not answer.
        """
        ...

    def running(self) -> AbstractContextManager[Target]:
        """Run a Triton with the version."""
        ...
