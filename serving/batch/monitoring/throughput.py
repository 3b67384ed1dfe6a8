"""How fast a batch job works, in tokens or rows a day, and when it will be done.

Only work that is written and committed counts. TPD is committed tokens ÷ wall seconds × 86,400; of
a model that reads and writes no tokens the unit is rows.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

import numpy as np

SECONDS_PER_DAY = 86_400
SECONDS_PER_HOUR = 3_600
SHORT_SECONDS = 600.0
"""What a shorter run would do in a day is an extrapolation, and is said to be one."""
STEADY = (0.1, 0.9)
"""The part of the work between start-up and tail."""
LEAST_COMMITS = 3
"""A rate needs two waits between commits; one may be anything."""
WINDOW_SECONDS = 60.0

Unit = Literal["rows", "tokens", "tokens_in", "tokens_out"]


@dataclass(frozen=True)
class Work:
    """Work that is written and committed.

    Attributes:
        rows: rows.
        tokens_in: tokens read, of prompts.
        tokens_out: tokens generated.
    """

    rows: int = 0
    tokens_in: int = 0
    tokens_out: int = 0

    def __add__(self, other: "Work") -> "Work":
        """Return both together."""
        return Work(
            self.rows + other.rows,
            self.tokens_in + other.tokens_in,
            self.tokens_out + other.tokens_out,
        )

    @property
    def tokens(self) -> int:
        """Tokens read and generated."""
        return self.tokens_in + self.tokens_out

    @property
    def unit(self) -> Unit:
        """What it is counted in: tokens, or rows where there are none."""
        return "tokens" if self.tokens else "rows"

    def count(self, unit: Unit) -> int:
        """Return how much of `unit` it is."""
        return int(getattr(self, unit))


@dataclass(frozen=True)
class Sample:
    """All that was committed at a time.

    Attributes:
        seconds: since the start of the job, which is at 0 without any work.
        work: since the start, never less than in the sample before.
    """

    seconds: float
    work: Work


@dataclass(frozen=True)
class Throughput:
    """How fast a job worked.

    Attributes:
        unit: what is counted.
        count: of all the job.
        seconds: from start to end.
        steady: per second, without start-up and tail; None where that is not known.
        peak: per second in the best window; None likewise.
    """

    unit: Unit
    count: int
    seconds: float
    steady: float | None
    peak: float | None

    @property
    def per_day(self) -> float:
        """From end to end, per day; TPD where the unit is tokens."""
        return per_day(self.count, self.seconds)

    @property
    def steady_per_day(self) -> float | None:
        """Without start-up and tail, per day."""
        return None if self.steady is None else self.steady * SECONDS_PER_DAY

    @property
    def is_short(self) -> bool:
        """Whether a number per day is an extrapolation from less than ten minutes."""
        return is_short(self.seconds)

    def as_json(self) -> dict[str, Any]:
        """Return JSON-ready values, with the numbers per day for readers."""
        daily = {"per_day": self.per_day, "steady_per_day": self.steady_per_day}
        return asdict(self) | daily | {"is_short": self.is_short}


@dataclass(frozen=True)
class Forecast:
    """When a job will be done.

    Attributes:
        seconds_left: until then.
        ends_at: then.
        late_by: seconds after the deadline, less than 0 where it is before; None without one.
    """

    seconds_left: float
    ends_at: datetime
    late_by: float | None = None

    @property
    def is_late(self) -> bool:
        """Whether there is a deadline and it will be missed."""
        return self.late_by is not None and self.late_by > 0


def throughput(samples: Sequence[Sample], window_seconds: float = WINDOW_SECONDS) -> Throughput:
    """Return how fast a job worked.

    Args:
        samples: of all of it, the earliest first; the last one at its end.
        window_seconds: of the peak; several times what is between two commits.
    """
    end = samples[-1] if samples else Sample(0.0, Work())
    unit = end.work.unit
    return Throughput(
        unit,
        end.work.count(unit),
        end.seconds,
        steady(samples, unit),
        peak(samples, window_seconds, unit),
    )


def per_day(count: float, seconds: float) -> float:
    """Return how many that is per day; 0 where no time has passed."""
    return count / seconds * SECONDS_PER_DAY if seconds > 0 else 0.0


def is_short(seconds: float) -> bool:
    """Return whether a run is too short for a number per day that is no extrapolation."""
    return seconds < SHORT_SECONDS


def unit_of(samples: Sequence[Sample]) -> Unit:
    """Return what the work is counted in: tokens, or rows where there are none."""
    return samples[-1].work.unit if samples else "rows"


def steady(samples: Sequence[Sample], unit: Unit | None = None) -> float | None:
    """Return the rate per second between 10% and 90% of the work.

    It goes from commit to commit, the first and the last one in between, so that neither start-up
    nor tail is in it.

    Args:
        samples: the earliest first.
        unit: what to count; tokens or rows where it is left out.

    Returns:
        None where fewer than three commits are in between.
    """
    unit = unit or unit_of(samples)
    commits = commits_of(samples, unit)
    total = commits[-1][1]
    low, high = (total * share for share in STEADY)
    return _rate([commit for commit in commits if low <= commit[1] <= high])


def peak(
    samples: Sequence[Sample], window_seconds: float, unit: Unit | None = None
) -> float | None:
    """Return the highest rate per second in any window of so many seconds.

    The work of a commit is taken as done evenly since the one before; so a window shorter than that
    says little.

    Args:
        samples: the earliest first.
        window_seconds: length of the window.
        unit: what to count; tokens or rows where it is left out.

    Returns:
        None where the job was shorter than the window.
    """
    seconds, counts = zip(*commits_of(samples, unit or unit_of(samples)), strict=True)
    if seconds[-1] < window_seconds or window_seconds <= 0:
        return None
    # The work in a window is greatest where the window begins or ends with a commit.
    ends = np.array([*seconds, *(start + window_seconds for start in seconds)])
    ends = ends[(ends >= window_seconds) & (ends <= seconds[-1])]
    done = np.interp(ends, seconds, counts) - np.interp(ends - window_seconds, seconds, counts)
    return float(done.max() / window_seconds)


def seconds_left(samples: Sequence[Sample], total: int, unit: Unit | None = None) -> float | None:
    """Return how long the rest will take at the rate of the later half of the time so far.

    A wait since the last commit counts once it is longer than any other in that time: work under
    way is not taken for a standstill, and a standstill is not overlooked.

    Args:
        samples: the earliest first; the last one is of now.
        total: all the work, in `unit`.
        unit: what to count; tokens or rows where it is left out.

    Returns:
        None before there are three commits, the start among them.
    """
    unit = unit or unit_of(samples)
    commits = commits_of(samples, unit)
    rest = total - commits[-1][1]
    if rest <= 0:
        return 0.0
    now = samples[-1].seconds if samples else 0.0
    later = [commit for commit in commits if commit[0] >= now / 2]
    recent = later if len(later) >= LEAST_COMMITS else commits[-LEAST_COMMITS:]
    waits = [b[0] - a[0] for a, b in zip(recent, recent[1:], strict=False)]
    until = max(recent[-1][0], now - max(waits, default=0.0))
    rate = _rate([*recent[:-1], (until, recent[-1][1])])
    return None if rate is None else rest / rate


def cost_per_million(cost_per_hour: float, seconds: float, tokens: int) -> float | None:
    """Return what a million tokens cost; None where there are none.

    Args:
        cost_per_hour: of all machines together, in any currency.
        seconds: that they were held for.
        tokens: committed in that time; or rows.
    """
    return cost_per_hour * seconds / SECONDS_PER_HOUR / tokens * 1e6 if tokens else None


def forecast(
    samples: Sequence[Sample],
    total: int,
    now: datetime,
    deadline: datetime | None = None,
    unit: Unit | None = None,
) -> Forecast | None:
    """Return when a job will be done; None before there is anything to go by.

    Args:
        samples: the earliest first; the last one is of now.
        total: all the work, in `unit`.
        now: the time of the last sample.
        deadline: when it is to be done, with a time zone where `now` has one.
        unit: what to count; tokens or rows where it is left out.
    """
    left = seconds_left(samples, total, unit)
    if left is None:
        return None
    late = None if deadline is None else late_by(now, left, deadline)
    return Forecast(left, now + timedelta(seconds=left), late)


def late_by(now: datetime, seconds_left: float, deadline: datetime) -> float:
    """Return how many seconds after its deadline a job will be done; less than 0 before it."""
    return (now - deadline).total_seconds() + seconds_left


def commits_of(samples: Sequence[Sample], unit: Unit) -> list[tuple[float, int]]:
    """Return seconds and count of the start and of every sample that shows new work."""
    found = [(0.0, 0)]
    for sample in samples:
        count = sample.work.count(unit)
        if count > found[-1][1]:
            found.append((sample.seconds, count))
    return found


def _rate(commits: Sequence[tuple[float, int]]) -> float | None:
    """Return the rate from the first commit to the last; None where there are too few."""
    if len(commits) < LEAST_COMMITS:
        return None
    (began, before), (ended, after) = commits[0], commits[-1]
    return (after - before) / (ended - began) if ended > began else None
