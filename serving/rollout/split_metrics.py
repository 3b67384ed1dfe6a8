"""What a splitter has counted, read from Triton's metrics endpoint.

Counters begin at zero with every load of the splitter, and each load has series of its own. So what
was counted between two readings is what each series gained, all of it where the series is new or
has begun again. A page that Triton wrote while a splitter brought its counters up to date is read
again; how that shows is in the backend's `split_counters`.
"""

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.error import URLError
from urllib.request import urlopen

from millrace.models.common.errors import TransientError
from millrace.models.common.installation import Endpoint
from millrace.serving.rollout.judge import Arm, Counts
from millrace.serving.rollout.rollout import Split

PREFIX = "millrace_split_"
SUFFIX = "_total"
READ_SECONDS = 5.0
READS = 20
WAIT_SECONDS = 0.05
"""Between two readings; whose counters do not belong together in any of them has died."""
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
        values: each series' value.
    """

    values: Mapping[Series, float] = field(default_factory=dict)

    def flushes(self, model: str) -> dict[Labels, float]:
        """Return how often each splitter of a model has handed its counters over."""
        of_model = ("model", model)
        return {
            labels: value
            for (name, labels), value in self.values.items()
            if name == DONE and of_model in labels
        }

    def serves(self, split: Split) -> bool:
        """Whether the splitter of this very step is loaded."""
        return any(_of_step(split) <= labels for _, labels in self.values)

    @property
    def torn(self) -> frozenset[Labels]:
        """The labels of counters that do not belong together."""
        done = {labels: value for (name, labels), value in self.values.items() if name == DONE}
        begun = {labels: value for (name, labels), value in self.values.items() if name == BEGUN}
        return frozenset(labels for labels, value in begun.items() if done.get(labels) != value)


def read(endpoint: Endpoint) -> Reading:
    """Read a server's counters; they are up to half a second old.

    Raises:
        TransientError: the metrics endpoint does not answer.
    """
    for _ in range(READS):
        if not (reading := parse(_page(endpoint))).torn:
            break
        time.sleep(WAIT_SECONDS)
    return reading


def _page(endpoint: Endpoint) -> str:
    address = f"http://{endpoint.host}:{endpoint.metrics_port}/metrics"
    try:
        with urlopen(address, timeout=READ_SECONDS) as answer:
            return str(answer.read().decode())
    except (URLError, OSError, UnicodeDecodeError) as error:
        raise TransientError(
            "Triton's metrics cannot be read",
            seen=f"{address}: {error}",
            hint="set MILLRACE_TRITON_METRICS_PORT to the port that Triton gives them at",
        ) from error


def parse(text: str) -> Reading:
    """Read the splitters' counters from Prometheus' text format."""
    values: dict[Series, float] = {}
    for line in text.splitlines():
        if match := _LINE.fullmatch(line):
            name, labels, value = match.groups()
            values[name, frozenset(_LABEL.findall(labels))] = float(value)
    return Reading(values)


def counted(split: Split, now: Reading, before: Reading | None = None) -> Counts:
    """Return what was counted in a step of a rollout.

    Args:
        split: the step; what another one left is not counted.
        now: a reading.
        before: an earlier one of the same server; None for all since the step began.
    """
    gained = _gained(split, now, before or Reading())

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


def _gained(split: Split, now: Reading, before: Reading) -> dict[tuple[str, str], float]:
    """Return what each counter of each arm gained, over all loads of the step's splitter."""
    step = _of_step(split)
    gained: dict[tuple[str, str], float] = {}
    torn = now.torn
    for (name, labels), value in now.values.items():
        if not step <= labels or labels in torn:
            continue
        start = before.values.get((name, labels), 0.0)
        key = dict(labels)["arm"], name
        gained[key] = gained.get(key, 0.0) + (value - start if value >= start else value)
    return gained


def _of_step(split: Split) -> Labels:
    return frozenset({("model", split.model), ("began", str(split.began))})
