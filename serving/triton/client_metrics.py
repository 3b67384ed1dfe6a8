"""What clients see, by model, for Prometheus: from the guard's record of requests."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from millrace.serving.guard.envoy_stats import BUCKETS_MS, BUCKETS_S
from millrace.serving.triton.client_load import Terms
from millrace.serving.triton.recent_requests import Ended, ended_by_model

NOT_LIVE = "(not live)"
"""The model of all requests to models that are not live: clients choose these names, and each label
takes memory.
"""
BOUNDS = np.array([*(each / 1e3 for each in BUCKETS_MS), *map(float, BUCKETS_S)])
"""Upper bounds of the latency buckets, in seconds."""
ANSWERED, FAILED, ABANDONED = "answered", "failed", "abandoned"
"""Outcomes of a request; the client of an abandoned one did not wait for the answer."""


@dataclass
class _Durations:
    counts: NDArray[np.int64] = field(
        default_factory=lambda: np.zeros(len(BOUNDS) + 1, dtype=np.int64)
    )
    seconds: float = 0.0

    def add(self, seconds: NDArray[np.float64]) -> None:
        places = np.searchsorted(BOUNDS, seconds)
        self.counts += np.bincount(places, minlength=len(BOUNDS) + 1)
        self.seconds += float(seconds.sum())

    def buckets(self) -> list[tuple[str, float]]:
        """Return the cumulative counts by upper bound."""
        names = [*(f"{bound:g}" for bound in BOUNDS), "+Inf"]
        return list(zip(names, self.counts.cumsum().tolist(), strict=True))


class ClientMetrics(Collector):
    """Counts the requests of live models. Models that no request came for are not shown."""

    def __init__(self) -> None:
        self._outcomes = Counter[tuple[str, str, str]]()
        self._durations: dict[tuple[str, str], _Durations] = {}
        self._within = Counter[str]()
        self._terms: Mapping[str, Terms] = {}
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def add(self, lines: Any, terms: Mapping[str, Terms]) -> None:
        """Count requests.

        Args:
            lines: of the guard, a table of `arrivals_table.SCHEMA`.
            terms: of all live models.
        """
        self._terms = dict(terms)
        for name, ended in ended_by_model(lines).items():
            model = name if name in terms else NOT_LIVE
            for protocol, chosen in (("grpc", ended.is_grpc), ("http", ~ended.is_grpc)):
                if chosen.any():
                    self._count(model, protocol, ended.chosen(chosen))
            goal = terms.get(name, Terms()).goal
            if goal is not None and goal.p99_ms is not None:
                self._within[name] += ended.count_within(goal.p99_ms)

    def _count(self, model: str, protocol: str, ended: Ended) -> None:
        abandoned = int((ended.milliseconds < 0).sum())
        answered = int(ended.is_answered.sum())
        counted = {
            ANSWERED: answered,
            ABANDONED: abandoned,
            FAILED: len(ended.milliseconds) - answered - abandoned,
        }
        for outcome, count in counted.items():
            self._outcomes[model, protocol, outcome] += count
        durations = self._durations.setdefault((model, protocol), _Durations())
        durations.add(ended.milliseconds[ended.is_answered] / 1e3)

    def page(self) -> bytes:
        """Return the metrics in the text format of Prometheus."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        requests = CounterMetricFamily(
            "millrace_requests",
            "Requests that ended, by model, protocol and outcome.",
            labels=("model", "protocol", "outcome"),
        )
        for labels, count in sorted(self._outcomes.items()):
            requests.add_metric(labels, count)
        yield requests
        durations = HistogramMetricFamily(
            "millrace_request_duration_seconds",
            "From the first byte of an answered request to the last one of its answer.",
            labels=("model", "protocol"),
        )
        for key, each in sorted(self._durations.items()):
            durations.add_metric(key, each.buckets(), each.seconds)
        yield durations
        yield from self._promised()

    def _promised(self) -> Iterator[Metric]:
        within = CounterMetricFamily(
            "millrace_requests_within_goal",
            "Requests that were answered within serving.slo.p99_ms.",
            labels=("model",),
        )
        for model, count in sorted(self._within.items()):
            within.add_metric((model,), count)
        yield within
        goals = GaugeMetricFamily(
            "millrace_goal_seconds", "Bounds of serving.slo.", labels=("model", "bound")
        )
        for model, each in sorted(self._terms.items()):
            for bound in ("p99", "ttft_p99", "tpot_p99"):
                value = getattr(each.goal, f"{bound}_ms", None)
                if value is not None:
                    goals.add_metric((model, bound), value / 1e3)
        yield goals
        price = GaugeMetricFamily(
            "millrace_machine_dollars_per_hour", "The largest batch.price_per_hour of live models."
        )
        known = [each.price_per_hour for each in self._terms.values() if each.price_per_hour]
        if known:
            price.add_metric((), max(known))
        yield price
