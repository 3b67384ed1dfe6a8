"""What the clients of each model see now: latency at the guard, goodput, and what a request costs.

The guard records each request with its duration and its status. Goodput is the requests that were
answered within the goal. Of a model that streams, Triton's histograms say which share of the first
tokens and of the further ones was in time, and the smaller share counts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from millrace.models.config.slo_spec import SloSpec
from millrace.serving.triton.recent_requests import Ended, RecentRequests
from millrace.serving.triton.served_load import (
    BATCHES,
    COMPUTE_US,
    SUCCESS,
    TO_MS,
    TOKENS,
    TPOT_US,
    TTFT_US,
    Change,
)
from millrace.serving.triton.server_index import owner_of

MILLION = 1e6
HOUR = 3600.0


@dataclass(frozen=True)
class Terms:
    """What is promised for a model, and what its machine costs.

    Attributes:
        goal: `serving.slo`; None without one.
        price_per_hour: `batch.price_per_hour`, of the machine; None if it is not known.
    """

    goal: SloSpec | None = None
    price_per_hour: float | None = None


@dataclass(frozen=True)
class ClientLoad:
    """What the clients of one model saw in the last seconds; None where nothing is known.

    Attributes:
        model: the model.
        requests_per_second: requests that ended.
        failed_per_second: those with an error, or that the client did not wait for.
        p50_ms: median time from the first byte of a request to the last one of its answer.
        p99_ms: 99th percentile of it.
        goodput_per_second: requests that were answered within the goal.
        cost_per_million: what a million requests cost at this rate: the machine's price, shared
            among its models by the time that they compute.
        cost_per_million_tokens: the same of tokens of answers.
    """

    model: str
    requests_per_second: float
    failed_per_second: float
    p50_ms: float | None
    p99_ms: float | None
    goodput_per_second: float | None
    cost_per_million: float | None
    cost_per_million_tokens: float | None


def client_loads(
    recent: RecentRequests, changes: Sequence[Change], terms: Mapping[str, Terms]
) -> list[ClientLoad]:
    """Return what the clients of each model saw, in the order of the models' names.

    Args:
        recent: the recorded requests.
        changes: what each server did.
        terms: goals and prices by model.
    """
    busy = _busy_seconds(changes)
    everything = sum(busy.values())
    price = max((each.price_per_hour or 0.0 for each in terms.values()), default=0.0)
    found = []
    for model, ended in sorted(recent.by_model().items()):
        is_good = ended.is_answered
        rate, failed = len(is_good) / recent.seconds, (~is_good).sum() / recent.seconds
        hourly = price * busy.get(model, 0.0) / everything if everything else 0.0
        p50, p99 = _quantiles(ended.milliseconds[is_good])
        goal = terms.get(model, Terms()).goal
        share = None if goal is None else _share_within(goal, model, ended, changes)
        tokens = sum(each.increase(TOKENS, model=model) or 0.0 for each in changes)
        span = max((each.seconds for each in changes), default=1.0)
        found.append(
            ClientLoad(
                *(model, rate, float(failed), p50, p99),
                goodput_per_second=None if share is None else share * rate,
                cost_per_million=_per_million(hourly, rate),
                cost_per_million_tokens=_per_million(hourly, tokens / span),
            )
        )
    return found


def _busy_seconds(changes: Sequence[Change]) -> dict[str, float]:
    """Return for how long each model computed. A batch counts once, not once for each request."""
    found = dict[str, float]()
    for change in changes:
        for model, version in change.versions():
            computed, done, batches = (
                change.increase(name, model=model, version=version) or 0.0
                for name in (COMPUTE_US, SUCCESS, BATCHES)
            )
            if done:
                owner = owner_of(model)
                found[owner] = found.get(owner, 0.0) + computed / done * batches / MILLION
    return found


def _share_within(
    goal: SloSpec, model: str, ended: Ended, changes: Sequence[Change]
) -> float | None:
    """Return the share of the requests that were answered within a goal; None if not known."""
    if goal.p99_ms is not None:
        return ended.count_within(goal.p99_ms) / len(ended.is_answered)
    shares = []
    for name, bound in {TTFT_US: goal.ttft_p99_ms, TPOT_US: goal.tpot_p99_ms}.items():
        if bound is not None:
            shares.append(share_below(_buckets(changes, name, model), bound / TO_MS))
    known = [each for each in shares if each is not None]
    return min(known) * float(np.mean(ended.is_answered)) if known else None


def share_below(buckets: Mapping[float, float], bound: float) -> float | None:
    """Return the share of values up to a bound from cumulative counts by upper bound.

    Values of a bucket count as spread evenly; those beyond the last bound are above any. Return
    None if all counts are zero.
    """
    bounds = sorted(buckets)
    if not bounds or not buckets[bounds[-1]]:
        return None
    finite = [each for each in bounds if each != float("inf")]
    if not finite or bound >= finite[-1]:
        return buckets[finite[-1]] / buckets[bounds[-1]] if finite else 0.0
    counts = [0.0, *(buckets[each] for each in finite)]
    return float(np.interp(bound, [0.0, *finite], counts)) / buckets[bounds[-1]]


def _buckets(changes: Sequence[Change], name: str, model: str) -> dict[float, float]:
    found = dict[float, float]()
    for change in changes:
        for bound, count in change.buckets(name, model=model).items():
            found[bound] = found.get(bound, 0.0) + count
    return found


def _quantiles(values: NDArray[np.float64]) -> tuple[float | None, float | None]:
    if not len(values):
        return None, None
    p50, p99 = np.quantile(values, (0.5, 0.99), method="higher")
    return float(p50), float(p99)


def _per_million(price_per_hour: float, per_second: float) -> float | None:
    if not price_per_hour or not per_second:
        return None
    return price_per_hour / HOUR / per_second * MILLION
