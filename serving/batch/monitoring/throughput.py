"""The throughput of a batch job, in tokens or rows a day, and the forecast of its end.

Only work that is written and committed counts. TPD (tokens per day) is committed tokens ÷ wall
seconds × 86,400. The unit of a model without tokens is rows.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

import numpy as np

SECONDS_PER_DAY = 86_400
SECONDS_PER_HOUR = 3_600
SHORT_SECONDS = 600.0
"""A number per day from a shorter run is marked as an extrapolation."""
STEADY = (0.1, 0.9)
"""Shares of the work: start-up ends at 10% of the work, and the tail begins at 90%."""
LEAST_COMMITS = 3
"""A rate needs at least two intervals between commits."""
WINDOW_SECONDS = 60.0

Unit = Literal["rows", "tokens", "tokens_in", "tokens_out"]


@dataclass(frozen=True)
class Work:
    """Work that is written and committed.

    Attributes:
        rows: number of rows.
        tokens_in: tokens of the prompts that were read.
        tokens_out: tokens that were generated.
    """

    rows: int = 0
    tokens_in: int = 0
    tokens_out: int = 0

    def __add__(self, other: "Work") -> "Work":
        """Return the sum."""
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
        """The unit of the work: tokens, or rows if there are no tokens."""
        return "tokens" if self.tokens else "rows"

    def count(self, unit: Unit) -> int:
        """Return the number of rows or tokens, as `unit` says."""
        return int(getattr(self, unit))


@dataclass(frozen=True)
class Sample:
    """The work that was committed up to a time.

    Attributes:
        seconds: seconds since the start of the job.
        work: work since the start; never less than in an earlier sample.
    """

    seconds: float
    work: Work


SecondsLeft = Callable[[Sequence[Sample], int, Unit], float | None]
"""Returns the seconds until a job ends, as `seconds_left` does."""


@dataclass(frozen=True)
class Throughput:
    """The throughput of a job.

    Attributes:
        unit: what is counted.
        count: all the work of the job, in `unit`.
        seconds: duration of the job.
        steady: rate per second without start-up and tail; None if there are too few commits.
        peak: rate per second in the best window; None if the job was shorter than the window.
    """

    unit: Unit
    count: int
    seconds: float
    steady: float | None
    peak: float | None


@dataclass(frozen=True)
class Forecast:
    """The forecast of a job's end.

    Attributes:
        seconds_left: seconds until the end.
        ends_at: expected time of the end.
        late_by: seconds from the deadline to the end; negative if the job ends before the deadline.
            None without a deadline.
    """

    seconds_left: float
    ends_at: datetime
    late_by: float | None = None

    @property
    def is_late(self) -> bool:
        """Whether there is a deadline that will be missed."""
        return self.late_by is not None and self.late_by > 0


def throughput(samples: Sequence[Sample], window_seconds: float = WINDOW_SECONDS) -> Throughput:
    """Return the throughput of a job.

    Args:
        samples: samples of the whole job, the earliest first; the last one at the job's end.
        window_seconds: length of the window of the peak, which should be several times the interval
            between two commits.
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
    """Return the number per day; 0 if no time has passed."""
    return count / seconds * SECONDS_PER_DAY if seconds > 0 else 0.0


def is_short(seconds: float) -> bool:
    """Return whether a number per day from a run of this length is an extrapolation."""
    return seconds < SHORT_SECONDS


def unit_of(samples: Sequence[Sample]) -> Unit:
    """Return the unit of the work: tokens, or rows if there are no tokens."""
    return samples[-1].work.unit if samples else "rows"


def steady(samples: Sequence[Sample], unit: Unit | None = None) -> float | None:
    """Return the rate per second between 10% and 90% of the work.

    The rate is measured from the first commit to the last commit in this range, without start-up
    and tail.

    Args:
        samples: the earliest first.
        unit: what to count; None: tokens, or rows if there are no tokens.

    Returns:
        None if fewer than three commits are in this range.
    """
    unit = unit or unit_of(samples)
    commits = commits_of(samples, unit)
    total = commits[-1][1]
    low, high = (total * share for share in STEADY)
    return _rate([commit for commit in commits if low <= commit[1] <= high])


def peak(
    samples: Sequence[Sample], window_seconds: float, unit: Unit | None = None
) -> float | None:
    """Return the highest rate per second in any window of this length.

    The work of a commit is spread evenly over the time since the commit before. So a window shorter
    than the interval between commits says little.

    Args:
        samples: the earliest first.
        window_seconds: length of the window.
        unit: what to count; None: tokens, or rows if there are no tokens.

    Returns:
        None if the job was shorter than the window.
    """
    seconds, counts = zip(*commits_of(samples, unit or unit_of(samples)), strict=True)
    if seconds[-1] < window_seconds or window_seconds <= 0:
        return None
    # The window with the most work begins or ends with a commit.
    ends = np.array([*seconds, *(start + window_seconds for start in seconds)])
    ends = ends[(ends >= window_seconds) & (ends <= seconds[-1])]
    done = np.interp(ends, seconds, counts) - np.interp(ends - window_seconds, seconds, counts)
    return float(done.max() / window_seconds)


def seconds_left(samples: Sequence[Sample], total: int, unit: Unit | None = None) -> float | None:
    """Return the seconds until the job ends, at the rate of the second half of the time so far.

    The time since the last commit counts only if it is longer than every other interval in that
    half. So work that is not committed yet does not look like a standstill, and a real standstill
    is noticed.

    Args:
        samples: the earliest first; the last one is the current state.
        total: all the work, in `unit`.
        unit: what to count; None: tokens, or rows if there are no tokens.

    Returns:
        None if there are fewer than three commits; the start of the job counts as a commit.
    """
    unit = unit or unit_of(samples)
    commits = commits_of(samples, unit)
    rest = total - commits[-1][1]
    if rest <= 0:
        return 0.0
    rate = _rate(recent_commits(commits, samples[-1].seconds if samples else 0.0))
    return None if rate is None else rest / rate


def recent_commits(commits: Sequence[tuple[float, int]], now: float) -> list[tuple[float, int]]:
    """Return the commits of the second half of the time, or the last few; see `seconds_left`.

    The last one is at the time until which its work lasted.

    Args:
        commits: as `commits_of` returns them.
        now: seconds since the start of the job.
    """
    later = [commit for commit in commits if commit[0] >= now / 2]
    recent = later if len(later) >= LEAST_COMMITS else list(commits[-LEAST_COMMITS:])
    waits = [b[0] - a[0] for a, b in zip(recent, recent[1:], strict=False)]
    until = max(recent[-1][0], now - max(waits, default=0.0))
    return [*recent[:-1], (until, recent[-1][1])]


def cost_per_million(cost_per_hour: float, seconds: float, tokens: int) -> float | None:
    """Return the cost of a million tokens; None if there are no tokens.

    Args:
        cost_per_hour: cost of all machines together, in any currency.
        seconds: how long the machines were used.
        tokens: number of tokens, or rows, committed in that time.
    """
    return cost_per_hour * seconds / SECONDS_PER_HOUR / tokens * 1e6 if tokens else None


def forecast(left: float, now: datetime, deadline: datetime | None = None) -> Forecast:
    """Return the forecast of a job's end.

    Args:
        left: the seconds until then.
        now: the time of the last sample.
        deadline: when the job must end, with a time zone if `now` has one.
    """
    late = None if deadline is None else (now - deadline).total_seconds() + left
    return Forecast(left, now + timedelta(seconds=left), late)


def commits_of(samples: Sequence[Sample], unit: Unit) -> list[tuple[float, int]]:
    """Return the commits that samples show, as pairs (seconds since the start, work in `unit`).

    The first pair is the start of the job. Each sample with more work than the sample before adds a
    pair.
    """
    found = [(0.0, 0)]
    for sample in samples:
        count = sample.work.count(unit)
        if count > found[-1][1]:
            found.append((sample.seconds, count))
    return found


def _rate(commits: Sequence[tuple[float, int]]) -> float | None:
    """Return the rate from the first commit to the last; None if there are too few commits."""
    if len(commits) < LEAST_COMMITS:
        return None
    (began, before), (ended, after) = commits[0], commits[-1]
    return (after - before) / (ended - began) if ended > began else None
