"""SP2, SP2M, SP2O: the event model of Triton's dynamic batcher beside real requests.

The loads are shares of the highest rate that keeps p99 at 20 ms; one is far beyond it. The times
that the model takes are measured before and after the requests, as the machine is faster at times;
what it expects is the geometric mean of both, since a ratio is judged. The median of several short
repeats counts, as a machine that others use changes its speed within minutes.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bench.measure import Beside, Row, off, queue_grows
from bench.profiled_digits import GOAL, Digits
from millrace.serving.profile.measure import measure_times
from millrace.serving.profile.profiled_model import ProfiledModel, profiled_model
from millrace.serving.profile.search import BatchConfiguration, Demand, Prediction, Setup, predict
from millrace.serving.profile.service_times import ServiceTimes
from millrace.serving.triton.open_loop import SentLoad

LOADS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.65, 0.8, 0.95)
HIGHEST, OVERLOAD = 0.8, 6.0
"""The highest load at which the goals of p50 and p99 hold, and one beyond what Triton can do."""
LOAD_SECONDS, FEWEST, MOST, REPEATS = 4.0, 300, 12_000, 5
CAPACITIES = 3
"""How often the highest rate is measured; the median counts."""
WARM_UP = 0.5
"""A load that is sent first and not looked at, so that a Triton's first seconds do not count."""
CONFIGURATION = BatchConfiguration(Setup(1, 1), 16)


@dataclass(frozen=True)
class Repeat:
    """What the event model expects at a load, and the real latency there.

    Attributes:
        expected: with the times of batches from before the load, and from after it.
        latency: float64 `[n]`, seconds.
    """

    expected: tuple[Prediction, Prediction]
    latency: NDArray[np.float64]

    def is_said(self, overload: bool) -> bool:
        """Return whether the event model says that it is overload, or that it is none."""
        return all(each.is_overload == overload for each in self.expected)

    @property
    def is_overload(self) -> bool:
        """Whether the real queue grew until the end."""
        return queue_grows(self.latency.tolist())


def beside_triton(digits: Digits) -> dict[float, list[Repeat]]:
    """Send requests at each load, and expect their latency from times measured around them."""
    found: dict[float, list[Repeat]] = {share: [] for share in (*LOADS, OVERLOAD)}
    with profiled_model(digits.artifact, digits.rows) as model:
        most = statistics.median(digits.capacity(model, CONFIGURATION) for _ in range(CAPACITIES))
    if not most:
        raise RuntimeError("no rate keeps the p99; is something else running?")
    before = times_of(digits)
    for seed in range(REPEATS):
        sent = dict[float, tuple[Demand, SentLoad]]()
        with profiled_model(digits.artifact, digits.rows) as model:
            model.serve(CONFIGURATION)
            send(model, WARM_UP * most, REPEATS)
            for share in found:
                sent[share] = send(model, share * most, seed)
        after = times_of(digits)
        for share, (demand, load) in sent.items():
            one, other = (
                predict(CONFIGURATION, times, demand, share * most) for times in (before, after)
            )
            found[share].append(Repeat((one, other), load.latency))
        before = after
    return found


def times_of(digits: Digits) -> ServiceTimes:
    """Measure the batches of the configuration."""
    serving = digits.artifact.serving
    return measure_times(digits.artifact, digits.rows, serving, CONFIGURATION.setup, GOAL.rows)


def send(model: ProfiledModel, rate: float, seed: int) -> tuple[Demand, SentLoad]:
    """Send requests at a rate; return them, and what became of them."""
    demand = Demand.of(GOAL, int(np.clip(rate * LOAD_SECONDS, FEWEST, MOST)), seed)
    arrivals = demand.at(rate)
    return demand, model.send(arrivals.times, arrivals.rows)


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
    alike = [float(each.is_said(share == OVERLOAD)) for share, each in judged]
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
        goal=f"{1 - most:.2f} to {1 + most:.2f}, or within the middle three repeats, at each load",
        holds=all(each.is_close(most) for each in counted),
        samples={
            "ratio": [each.ratio for each in beside.values()],
            "real_ms": [statistics.median(each.real) for each in beside.values()],
            "expected_ms": [statistics.median(each.expected) for each in beside.values()],
            **{
                f"{share:.0%}: real, expected": [*each.real, *each.expected]
                for share, each in beside.items()
            },
        },
    )


def _beside(repeats: Sequence[Repeat], quantile: float) -> Beside:
    real = [float(np.quantile(each.latency, quantile, method="higher")) * 1e3 for each in repeats]
    which = "p99_ms" if quantile > 0.5 else "p50_ms"
    expected = [[float(getattr(one, which)) for one in each.expected] for each in repeats]
    return Beside([statistics.geometric_mean(each) for each in expected], real)
