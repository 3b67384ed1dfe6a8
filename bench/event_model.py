"""SP2, SP2M, SP2O: the event model of Triton's dynamic batcher beside real requests.

The loads are shares of the highest rate that keeps p99 at 20 ms; one is far beyond it. The times
that the model takes are measured in turn with the requests: the machine is faster at times.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bench.measure import Row, off
from bench.profiled_digits import GOAL, Digits
from millrace.serving.profile.measure import measure_times
from millrace.serving.profile.profiled_model import ProfiledModel, profiled_model
from millrace.serving.profile.search import BatchConfiguration, Demand, Prediction, Setup, predict
from millrace.serving.profile.service_times import ServiceTimes

LOADS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.65, 0.8, 0.95)
HIGHEST, OVERLOAD = 0.8, 2.5
"""The highest load at which the goals of p50 and p99 hold, and one beyond what Triton can do."""
LOAD_SECONDS, FEWEST, MOST, REPEATS = 8.0, 300, 12_000, 3
WARM_UP = 0.5
"""A load that is sent first and not looked at: the first seconds of a Triton are slower."""
LONGER = 2.0
"""The last quarter of the requests waits so many times as long as the first where a queue grows."""
CONFIGURATION = BatchConfiguration(Setup(1, 1), 16)


@dataclass(frozen=True)
class Repeat:
    """What the event model expects at a load, and the real latency there, seconds `[n]`."""

    expected: Prediction
    latency: NDArray[np.float64]

    @property
    def is_overload(self) -> bool:
        """Whether the real queue grew until the end."""
        first, *_, last = np.array_split(self.latency, 4)
        return bool(np.median(last) > LONGER * np.median(first))


@dataclass(frozen=True)
class Beside:
    """Expected and real milliseconds of one quantile at one load; one of each for each repeat."""

    expected: Sequence[float]
    real: Sequence[float]

    @property
    def ratio(self) -> float:
        """Expected ÷ real, of the medians."""
        return statistics.median(self.expected) / statistics.median(self.real)

    def is_close(self, most: float) -> bool:
        """Return whether they differ by so much at most, or no more than the real repeats do."""
        is_within = min(self.real) <= statistics.median(self.expected) <= max(self.real)
        return abs(self.ratio - 1) <= most or is_within


def beside_triton(digits: Digits) -> dict[float, list[Repeat]]:
    """Send requests at each load, and expect their latency from times measured just before."""
    most = 0.0
    found: dict[float, list[Repeat]] = {share: [] for share in (*LOADS, OVERLOAD)}
    for seed in range(REPEATS):
        times = measure_times(
            digits.artifact, digits.rows, digits.artifact.serving, CONFIGURATION.setup, GOAL.rows
        )
        with profiled_model(digits.artifact, digits.rows) as model:
            most = most or digits.capacity(model, CONFIGURATION)
            model.serve(CONFIGURATION)
            repeat(model, times, WARM_UP * most, REPEATS)
            for share, repeats in found.items():
                repeats.append(repeat(model, times, share * most, seed))
    return found


def repeat(model: ProfiledModel, times: ServiceTimes, rate: float, seed: int) -> Repeat:
    """Expect the latency of requests at a rate, and send the same ones."""
    demand = Demand.of(GOAL, int(np.clip(rate * LOAD_SECONDS, FEWEST, MOST)), seed)
    expected, arrivals = predict(CONFIGURATION, times, demand, rate), demand.at(rate)
    return Repeat(expected, model.send(arrivals.times, arrivals.rows).latency)


def row_of_p99(found: dict[float, list[Repeat]]) -> Row:
    """SP2: p99 of the event model, against real requests."""
    return _row("SP2", found, 0.99, 0.15)


def row_of_medians(found: dict[float, list[Repeat]]) -> Row:
    """SP2M: p50 of the event model, against real requests."""
    return _row("SP2M", found, 0.50, 0.10)


def row_of_overload(found: dict[float, list[Repeat]]) -> Row:
    """SP2O: whether the event model says overload where the queue grows, and nowhere else."""
    repeats = [(share, each) for share, all_of in found.items() for each in all_of]
    judged = [(s, each) for s, each in repeats if s <= HIGHEST or s == OVERLOAD]
    alike = [float(each.expected.is_overload == (share == OVERLOAD)) for share, each in judged]
    grew = [float(each.is_overload) for each in found[OVERLOAD]]
    return Row(
        name="SP2O",
        what=f"right answers to whether a load is overload, of {len(alike)}: at "
        f"{OVERLOAD:.0%} of capacity (the real queue grew in {sum(grew):.0f} of {len(grew)}), "
        f"and not at {HIGHEST:.0%} and below",
        value=sum(alike),
        goal=f"{len(alike)}",
        holds=all(alike) and all(grew),
        samples={"right": alike, "grew": grew},
    )


def _row(name: str, found: dict[float, list[Repeat]], quantile: float, most: float) -> Row:
    beside = {share: _beside(found[share], quantile) for share in LOADS}
    counted = [each for share, each in beside.items() if share <= HIGHEST]
    return Row(
        name=name,
        what=f"p{quantile:.0%}".rstrip("%") + " of the event model ÷ of Triton, the worst of "
        f"{len(counted)} loads up to {HIGHEST:.0%} of capacity",
        value=max((each.ratio for each in counted), key=off),
        goal=f"{1 - most:.2f} to {1 + most:.2f}, or within three repeats, at each load",
        holds=all(each.is_close(most) for each in counted),
        samples={
            "ratio": [each.ratio for each in beside.values()],
            "real_ms": [statistics.median(each.real) for each in beside.values()],
            "lowest_real_ms": [min(each.real) for each in beside.values()],
            "highest_real_ms": [max(each.real) for each in beside.values()],
            "expected_ms": [statistics.median(each.expected) for each in beside.values()],
        },
    )


def _beside(repeats: Sequence[Repeat], quantile: float) -> Beside:
    real = [float(np.quantile(each.latency, quantile, method="higher")) * 1e3 for each in repeats]
    which = "p99_ms" if quantile > 0.5 else "p50_ms"
    return Beside([float(getattr(each.expected, which)) for each in repeats], real)
