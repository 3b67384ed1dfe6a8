"""The backend's Prometheus metrics, on Triton's metrics endpoint.

Each update is a round trip to the server, so the engine's thread only records numbers, and another
thread sends them. The label `instance` differs in every load of a model. While one instance
replaces another, both exist, and with equal labels Triton would delete the series of the newer
instance too.
"""

import threading
from collections.abc import Mapping
from secrets import token_hex

import triton_python_backend_utils as pb_utils
from lm_stream import Stream  # type: ignore[import-not-found]

FIRST, EACH = "time_to_first_token_us", "time_per_output_token_us"
INPUT, OUTPUT = "input_tokens_total", "output_tokens_total"
RUNNING, WAITING, CACHE = "running_sequences", "waiting_sequences", "cache_usage"
HISTOGRAM, COUNTER, GAUGE = "HISTOGRAM", "COUNTER", "GAUGE"
FAMILIES = {
    FIRST: (HISTOGRAM, "Time from a request's arrival to its first token, in microseconds."),
    EACH: (HISTOGRAM, "Mean time between two tokens of an answer, in microseconds."),
    INPUT: (COUNTER, "Tokens of the prompts of requests that ended."),
    OUTPUT: (COUNTER, "Tokens of the answers to requests that ended."),
    RUNNING: (GAUGE, "Answers that the engine generates now."),
    WAITING: (GAUGE, "Requests that the engine has not started."),
    CACHE: (GAUGE, "Share of the KV cache in use, from 0 to 1."),
}
BUCKETS = [step * 10.0**power for power in range(2, 8) for step in (1, 2, 5)]


class Metrics:
    """The metric series of one instance.

    Args:
        labels: labels of every series.
    """

    def __init__(self, labels: Mapping[str, str]) -> None:
        self._lock = threading.Lock()
        self._sums: dict[str, float] = {}
        self._times: list[tuple[str, float]] = []
        self._gauges: dict[str, float] = {}
        self._families = {
            name: pb_utils.MetricFamily(
                name=f"millrace_lm_{name}",
                description=text,
                kind=getattr(pb_utils.MetricFamily, kind),
            )
            for name, (kind, text) in FAMILIES.items()
        }
        labels = {**labels, "instance": token_hex(4)}
        self._metrics = {
            name: self._families[name].Metric(
                labels=labels, **({"buckets": BUCKETS} if kind == HISTOGRAM else {})
            )
            for name, (kind, _) in FAMILIES.items()
        }

    def count_finished(self, stream: Stream) -> None:
        """Count a request that ended."""
        tokens, answers = stream.output_tokens, len(stream.answers)
        with self._lock:
            self._add(INPUT, stream.request.input_tokens)
            self._add(OUTPUT, tokens)
            if stream.first_at:
                self._times.append((FIRST, (stream.first_at - stream.began) * 1e6))
            if tokens > answers:
                seconds = stream.last_at - stream.first_at
                self._times.append((EACH, seconds * 1e6 * answers / (tokens - answers)))

    def flush(self, gauges: Mapping[str, float]) -> None:
        """Send the recorded numbers and the gauges; only one thread at a time may call this."""
        with self._lock:
            sums, self._sums = self._sums, {}
            times, self._times = self._times, []
        for name, amount in sums.items():
            self._metrics[name].increment(amount)
        for name, value in times:
            self._metrics[name].observe(value)
        for name, value in gauges.items():
            if self._gauges.get(name) != value:
                self._metrics[name].set(value)
        self._gauges = dict(gauges)

    def close(self) -> None:
        """Delete the series: metrics before their families."""
        self._metrics.clear()
        self._families.clear()

    def _add(self, name: str, amount: float) -> None:
        self._sums[name] = self._sums.get(name, 0.0) + amount
