"""The splitter's Prometheus counters, on Triton's metrics endpoint.

Each increment is a round trip to the server, so increments are summed here and sent twice a second.
A metrics page that is read meanwhile would have only some of the increments. So `flushes_begun` is
incremented before the other counters and `flushes_done` after them. Triton writes its page from the
first registered family to the last, so `flushes_done` is at the top and `flushes_begun` at the end:
if both are equal, all counters between them are consistent (a sequence lock).

The label `instance` differs in every load of the model. While one instance replaces another, both
exist, and with equal labels Triton would delete the series of the newer instance too.
"""

import threading
from collections.abc import Mapping
from secrets import token_hex

import triton_python_backend_utils as pb_utils
from split_observations import BLOCK, LatencyBlocks  # type: ignore[import-not-found]

FLUSH_SECONDS = 0.5
BEGUN, DONE = "flushes_begun", "flushes_done"
DESCRIPTIONS = {
    DONE: "Number of completed updates of the counters below.",
    "requests": "Requests that a version had to answer.",
    "failures": "Requests that a version failed; a candidate's only if the champion answered.",
    "latency_seconds": "Sum of the latencies of a version's answers, in seconds.",
    "log_latency_blocks": f"Blocks of {BLOCK} successive latencies.",
    "log_latency": "Mean of ln(latency in microseconds) in a block, summed over blocks.",
    "log_latency_squares": "Square of the mean of ln(latency) in a block, summed over blocks.",
    "timed_answers": f"Answers in full blocks of {BLOCK} latencies.",
    "late_answers": "Those of them that took longer than the goal.",
    "late_answers_squares": "Square of the late answers of a block, summed over blocks.",
    "compared_rows": "Rows that both versions answered, one per request.",
    "agreeing_rows": "Rows that both versions answered alike.",
    "shed": "Calls to the candidate dropped because too many were in flight.",
    BEGUN: "Number of started updates of the counters above.",
}


class Counters:
    """Counters of both versions; thread-safe.

    Args:
        labels: labels of every series.
        versions: the version of each arm, by the arm's name: champion or candidate.
        bound: seconds from which an answer is late.
    """

    def __init__(
        self, labels: Mapping[str, str], versions: Mapping[str, str], bound: float
    ) -> None:
        self._lock = threading.Lock()
        self._pending: dict[str, dict[str, float]] = {}
        self._blocks = {arm: LatencyBlocks(bound) for arm in versions}
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
        """Add amounts to the counters of an arm, by counter name."""
        with self._lock:
            self._add(arm, amounts)

    def add_latency(self, arm: str, seconds: float) -> None:
        """Count the latency of an answer."""
        with self._lock:
            self._add(arm, {"latency_seconds": seconds, **self._blocks[arm].add(seconds)})

    def close(self) -> None:
        """Send the remaining sums, and delete the series: metrics before their families."""
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
        for arm in self._blocks:  # even without increments, to show that this splitter is alive
            sums = pending.get(arm, {})
            for name, amount in {BEGUN: 1.0, **sums, DONE: 1.0}.items():
                self._metrics[arm, name].increment(amount)
