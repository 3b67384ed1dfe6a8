"""The splitter's Prometheus counters, on Triton's metrics endpoint.

Each increment is a round trip to the server, so sums are kept here and sent twice a second. A page
that is read meanwhile would have some of the increments and not the others. So `flushes_begun` is
incremented before the others and `flushes_done` after them. Triton writes its page from the first
registered family to the last, so `flushes_done` is at its top and `flushes_begun` at its end: if
both are equal, all counters between them are consistent (a sequence lock).

The label `instance` differs in every load of the model: while one instance replaces another, both
exist, and with equal labels Triton would delete the newer one's series too.
"""

import threading
from collections.abc import Mapping
from secrets import token_hex

import triton_python_backend_utils as pb_utils
from split_observations import BLOCK, LatencyBlocks  # type: ignore[import-not-found]

FLUSH_SECONDS = 0.5
BEGUN, DONE = "flushes_begun", "flushes_done"
DESCRIPTIONS = {
    DONE: "Times that the counters below were brought up to date.",
    "requests": "Requests that a version had to answer.",
    "failures": "Requests that it failed; a candidate's only where the champion answered.",
    "latency_seconds": "Time of its answers to clients, summed, in seconds.",
    "log_latency_blocks": f"Blocks of {BLOCK} successive latencies.",
    "log_latency": "Mean of ln(latency in microseconds) in a block, summed over blocks.",
    "log_latency_squares": "The same, squared before it is summed.",
    "compared_rows": "Rows that both versions answered, one of each request.",
    "agreeing_rows": "Rows that both answered alike.",
    "shed": "Calls that were not made because too many were under way.",
    BEGUN: "Times that an update of the counters above began.",
}


class Counters:
    """Counters of both versions; safe to use from several threads.

    Args:
        labels: labels of every series.
        versions: the version of each arm, by its name.
    """

    def __init__(self, labels: Mapping[str, str], versions: Mapping[str, str]) -> None:
        self._lock = threading.Lock()
        self._pending: dict[str, dict[str, float]] = {}
        self._blocks = {arm: LatencyBlocks() for arm in versions}
        self._families = {
            name: pb_utils.MetricFamily(
                name=f"millrace_split_{name}_total",
                description=text,
                kind=pb_utils.MetricFamily.COUNTER,
            )
            for name, text in DESCRIPTIONS.items()
        }
        common = {**labels, "instance": token_hex(4)}
        self._metrics = {
            (arm, name): family.Metric(labels={**common, "arm": arm, "version": version})
            for arm, version in versions.items()
            for name, family in self._families.items()
        }
        self._closed = threading.Event()
        self._flusher = threading.Thread(target=self._flush_for_ever, daemon=True)
        self._flusher.start()

    def add(self, arm: str, **amounts: float) -> None:
        """Add to counters of an arm, by their names."""
        with self._lock:
            self._add(arm, amounts)

    def add_latency(self, arm: str, seconds: float) -> None:
        """Count the time of an answer."""
        with self._lock:
            self._add(arm, {"latency_seconds": seconds, **self._blocks[arm].add(seconds)})

    def close(self) -> None:
        """Send the rest, and delete the series: metrics before their families."""
        self._closed.set()
        self._flusher.join()
        self._flush()
        self._metrics.clear()
        self._families.clear()

    def _add(self, arm: str, amounts: Mapping[str, float]) -> None:
        sums = self._pending.setdefault(arm, {})
        for name, amount in amounts.items():
            sums[name] = sums.get(name, 0.0) + amount

    def _flush_for_ever(self) -> None:
        while not self._closed.wait(FLUSH_SECONDS):
            self._flush()

    def _flush(self) -> None:
        with self._lock:
            pending, self._pending = self._pending, {}
        for arm in self._blocks:  # also without increments, as a sign of life
            sums = pending.get(arm, {})
            for name, amount in {BEGUN: 1.0, **sums, DONE: 1.0}.items():
                self._metrics[arm, name].increment(amount)
