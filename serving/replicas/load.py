"""The load of the replicas in the words of the scaler: one rate and one capacity for all models.

A Triton serves all models of the home, each with a capacity of its own. What a replica can take of
their mix is the rate at which the shares of its time add up to one: of two models with 100 and 10
requests/s as capacities, equally often asked, 18 requests/s. A model whose live version has no
serving profile does not count, as nobody knows what it takes.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from millrace.models.common.errors import TransientError
from millrace.models.common.installation import Endpoint
from millrace.models.config.replicas_spec import ReplicasSpec
from millrace.serving.profile.scaler import Bounds
from millrace.serving.triton.served_load import Change, Look, Samples, model_loads, read_metrics

WINDOW = 10.0
"""Seconds over which a rate is measured."""


@dataclass(frozen=True)
class Capacity:
    """What the serving profile of a live version says.

    Attributes:
        model: its model.
        requests: requests per second of one replica within the goal.
        bound_ms: the goal's largest p99, in milliseconds.
    """

    model: str
    requests: float
    bound_ms: float


@dataclass(frozen=True)
class Traffic:
    """The requests for one model, to all replicas.

    Attributes:
        rate: requests per second, failed ones included.
        queue_ms: mean time in the queue; None without requests.
    """

    rate: float
    queue_ms: float | None = None


@dataclass(frozen=True)
class Load:
    """What the scaler decides with.

    Attributes:
        bounds: the limits, and one replica's capacity for the mix of models.
        rate: requests per second of all models with a capacity; None if it is not known.
        queue_ms: time in the queue, of the model for which it is the largest share of its bound.
    """

    bounds: Bounds
    rate: float | None
    queue_ms: float | None


def mix_load(
    spec: ReplicasSpec, capacities: Sequence[Capacity], traffic: Mapping[str, Traffic] | None
) -> Load:
    """Return the load of all models together.

    Args:
        spec: how many replicas are allowed.
        capacities: of the live versions with a serving profile; at least one.
        traffic: the requests by model; None if they are not known. A model that is not there has
            no metrics, which is not the same as no requests.
    """
    seen = {} if traffic is None else traffic
    is_known = all(each.model in seen for each in capacities)
    pairs = [(each, seen.get(each.model, Traffic(0.0))) for each in capacities]
    rate = sum(each.rate for _, each in pairs)
    busy = sum(each.rate / capacity.requests for capacity, each in pairs)
    capacity = rate / busy if busy else min(each.requests for each in capacities)
    waits, found = max(pairs, key=lambda pair: (pair[1].queue_ms or 0.0) / pair[0].bound_ms)
    return Load(
        Bounds(spec.min, spec.max, capacity, waits.bound_ms),
        rate if is_known else None,
        found.queue_ms if is_known else None,
    )


class TrafficMeter:
    """Measures the requests to the replicas between looks at their metrics.

    Args:
        read: returns the metrics of a replica.
        clock: a monotonic clock, in seconds.
    """

    def __init__(
        self,
        read: Callable[[Endpoint], Samples] = read_metrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read, self._clock = read, clock
        self._looks: dict[Endpoint, deque[Look]] = {}

    def measure(self, replicas: Iterable[Endpoint]) -> Mapping[str, Traffic] | None:
        """Return the requests by model, of the models that every replica has metrics of.

        Return None if a replica does not say.

        A replica that is looked at for the first time has no rate yet, so nothing is known then.
        """
        now, endpoints = self._clock(), tuple(replicas)
        looks = {each: self._looks.get(each, deque()) for each in endpoints}
        try:
            for each in endpoints:
                looks[each].append(Look(now, self._read(each)))
        except TransientError:
            self._looks = {}
            return None
        self._looks = looks
        for past in looks.values():
            while len(past) > 2 and now - past[1].at >= WINDOW:
                past.popleft()
        if not looks or any(len(past) < 2 for past in looks.values()):
            return None
        return _add_up([Change(past[0], past[-1]) for past in looks.values()])


def _add_up(changes: Sequence[Change]) -> dict[str, Traffic]:
    """Return the requests by model, of all versions and replicas together."""
    rates: dict[str, float] = {}
    waited: dict[str, float] = {}
    shown = [model_loads(change) for change in changes]
    everywhere = set.intersection(*({each.model for each in loads} for loads in shown))
    for loads in shown:
        for each in loads:
            done = each.requests_per_second
            rates[each.model] = rates.get(each.model, 0.0) + done + each.failed_per_second
            waited[each.model] = waited.get(each.model, 0.0) + done * (each.queue_ms or 0.0)
    return {
        model: Traffic(rate, waited[model] / rate if rate else None)
        for model, rate in rates.items()
        if model in everywhere
    }
