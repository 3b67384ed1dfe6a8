"""Read the counters of a splitter from Triton's metrics endpoint.

Counters start at zero with every load of the splitter, and each load has its own series. So the
count between two readings is the sum of the increases of all series. The increase is the whole
value if the series is new or has restarted. A metrics page that Triton wrote while a splitter was
updating its counters is read again; the backend's `split_counters` describes how to detect this.
"""

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.request import urlopen

from millrace.models.common.errors import TransientError
from millrace.models.common.installation import Endpoint
from millrace.serving.guard.replica_names import metrics_path
from millrace.serving.rollout.judge import Arm, Counts
from millrace.serving.rollout.rollout import Split

PREFIX = "millrace_split_"
SUFFIX = "_total"
READ_SECONDS = 5.0
MAX_READS = 20
WAIT_SECONDS = 0.05
"""Pause between two readings. A splitter has died if its counters are inconsistent in all of
them."""
BEGUN, DONE = "flushes_begun", "flushes_done"
_LINE = re.compile(rf"{PREFIX}(\w+){SUFFIX}\{{(.*)\}} (\S+)")
_LABEL = re.compile(r'(\w+)="([^"]*)"')

Labels = frozenset[tuple[str, str]]
Series = tuple[str, Labels]
"""A counter's name, without prefix and suffix, and its labels."""


@dataclass(frozen=True)
class Reading:
    """The splitters' counters of one server at one moment.

    Attributes:
        values: the value of each series.
    """

    values: Mapping[Series, float] = field(default_factory=dict)

    def flushes(self, model: str) -> dict[Labels, float]:
        """Return how often each splitter of a model has updated its counters."""
        of_model = ("model", model)
        return {
            labels: value
            for (name, labels), value in self.values.items()
            if name == DONE and of_model in labels
        }

    def has_step(self, split: Split) -> bool:
        """Whether the splitter of this step is loaded."""
        return any(_step_labels(split) <= labels for _, labels in self.values)

    @property
    def inconsistent(self) -> frozenset[Labels]:
        """The labels of counters that were read in the middle of an update."""
        done = {labels: value for (name, labels), value in self.values.items() if name == DONE}
        begun = {labels: value for (name, labels), value in self.values.items() if name == BEGUN}
        return frozenset(labels for labels, value in begun.items() if done.get(labels) != value)


def read_counters(endpoint: Endpoint) -> Reading:
    """Read the counters of a server, which are up to half a second old.

    Raises:
        TransientError: the metrics endpoint cannot be read.
    """
    for _ in range(MAX_READS):
        if not (reading := parse_counters(_fetch_page(endpoint))).inconsistent:
            break
        time.sleep(WAIT_SECONDS)
    return reading


def _fetch_page(endpoint: Endpoint) -> str:
    page = metrics_path(endpoint.replica)
    address = f"http://{endpoint.host}:{endpoint.metrics_port}{page}"
    try:
        with urlopen(address, timeout=READ_SECONDS) as answer:
            return str(answer.read().decode())
    except (OSError, UnicodeDecodeError) as error:
        raise TransientError(
            "Triton's metrics cannot be read",
            seen=f"{address}: {error}",
            hint="set MILLRACE_TRITON_METRICS_PORT to the port of Triton's metrics",
        ) from error


def parse_counters(text: str) -> Reading:
    """Return the splitters' counters in a page of Prometheus' text format."""
    values: dict[Series, float] = {}
    for line in text.splitlines():
        if match := _LINE.fullmatch(line):
            name, labels, value = match.groups()
            values[name, frozenset(_LABEL.findall(labels))] = float(value)
    return Reading(values)


def count_step(split: Split, now: Reading, before: Reading | None = None) -> Counts:
    """Return the counts of a rollout's step.

    Args:
        split: the step; counters of other steps are ignored.
        now: the latest reading.
        before: an earlier reading of the same server; None for the start of the step.
    """
    gained = _sum_gains(split, now, before or Reading())

    def of(arm: str, name: str) -> float:
        return gained.get((arm, name), 0.0)

    champion, candidate = (
        Arm(
            requests=round(of(arm, "requests")),
            failures=round(of(arm, "failures")),
            seconds=of(arm, "latency_seconds"),
            blocks=round(of(arm, "log_latency_blocks")),
            log_latency=of(arm, "log_latency"),
            log_latency_squares=of(arm, "log_latency_squares"),
            timed=round(of(arm, "timed_answers")),
            late=round(of(arm, "late_answers")),
            late_squares=of(arm, "late_answers_squares"),
        )
        for arm in ("champion", "candidate")
    )
    return Counts(
        champion,
        candidate,
        compared=round(of("candidate", "compared_rows")),
        agreeing=round(of("candidate", "agreeing_rows")),
        shed=round(of("candidate", "shed")),
    )


def _sum_gains(split: Split, now: Reading, before: Reading) -> dict[tuple[str, str], float]:
    """Return the increase of each counter of each arm, over all loads of the step's splitter."""
    step = _step_labels(split)
    gained: dict[tuple[str, str], float] = {}
    inconsistent = now.inconsistent
    for (name, labels), value in now.values.items():
        if not step <= labels or labels in inconsistent:
            continue
        start = before.values.get((name, labels), 0.0)
        key = dict(labels)["arm"], name
        gained[key] = gained.get(key, 0.0) + (value - start if value >= start else value)
    return gained


def _step_labels(split: Split) -> Labels:
    return frozenset({("model", split.model), ("began", str(split.began))})
