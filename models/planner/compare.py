"""Which machines meet a pipeline's bounds, and which of them is the cheapest."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from millrace.models.planner.quantity import Quantity, Unit, format_value
from millrace.models.planner.sheet import Sheet

HOURS_OF_A_MONTH = 730


@dataclass(frozen=True)
class Bounds:
    """What a plan must keep to; None: no bound.

    Attributes:
        latency: most seconds of one row, or to the first token (`serving.latency_slo_ms`).
        nightly: most seconds of the nightly job, until `batch.deadline`.
        budget: most dollars for a month in which the service always runs.
        load: rows or tokens per second that the service is asked for.
    """

    latency: float | None = None
    nightly: float | None = None
    budget: float | None = None
    load: float | None = None


@dataclass(frozen=True)
class Broken:
    """A bound that a machine does not keep to.

    Attributes:
        stage: the stage that does not keep to it.
        what: the bound.
        found: what the machine needs, takes or costs.
        allowed: what is allowed.
        unit: the unit of both.
    """

    stage: str
    what: str
    found: float
    allowed: float
    unit: Unit

    @property
    def factor(self) -> float:
        """How many times too much it is."""
        return self.found / self.allowed

    def __str__(self) -> str:
        """Return the bound, and by how much it is exceeded."""
        found, allowed = (format_value(n, self.unit) for n in (self.found, self.allowed))
        return f"{self.what}: {found}, {self.factor:.3g} times the {allowed} that are allowed"


@dataclass(frozen=True)
class Verdict:
    """How a machine fares.

    Attributes:
        sheet: its plan.
        broken: the bounds that it does not keep to.
        doubtful: the bounds that it keeps to by the estimate, but not at the end of its interval.
        unchecked: the bounds that nothing is known of.
        monthly: dollars for a month; None: its price is not known.
    """

    sheet: Sheet
    broken: tuple[Broken, ...]
    doubtful: tuple[Broken, ...]
    unchecked: tuple[str, ...]
    monthly: float | None

    @property
    def is_feasible(self) -> bool:
        """Whether it keeps to all bounds."""
        return not self.broken

    @property
    def worst(self) -> float:
        """The largest factor by which a bound is exceeded; 0 if none is."""
        return max((each.factor for each in self.broken), default=0.0)


def judge_sheet(sheet: Sheet, bounds: Bounds) -> Verdict:
    """Return which bounds a plan does not keep to."""
    price = sheet.machines.dollars_per_hour
    monthly = None if price is None else price * HOURS_OF_A_MONTH
    broken = [*_of_size(sheet)]
    if monthly is not None and bounds.budget is not None and monthly > bounds.budget:
        broken.append(Broken("online", "a month", monthly, bounds.budget, "dollars"))
    doubtful: list[Broken] = []
    for each, is_certain in _of_time(sheet, bounds):
        (broken if is_certain else doubtful).append(each)
    unchecked = ("batch.deadline",) if bounds.nightly and _night(sheet) is None else ()
    return Verdict(sheet, tuple(broken), tuple(doubtful), unchecked, monthly)


def _night(sheet: Sheet) -> Quantity | None:
    """Return the time of the nightly job; None if it is not known."""
    return next((each for each in sheet.cells["batch"]["speed"] if each.unit == "seconds"), None)


def _of_size(sheet: Sheet) -> Iterator[Broken]:
    """Yield the stages that need more memory or devices than there are."""
    for each in sheet.faults:
        yield Broken(each.stage, each.what, each.needed, each.available, "bytes")
    count = sheet.machines.count
    for stage, needed in sheet.devices.items():
        if needed > count:
            yield Broken(stage, f"devices for {stage}", needed, count, "count")


def _of_time(sheet: Sheet, bounds: Bounds) -> Iterator[tuple[Broken, bool]]:
    """Yield the bounds of time that are exceeded, and whether the estimate itself exceeds them.

    If it does not, the slow end of its interval does.
    """
    times = (
        ("online", sheet.latency.name, sheet.latency, bounds.latency),
        ("batch", "the nightly job", _night(sheet), bounds.nightly),
    )
    for stage, what, time, allowed in times:
        if time is None or allowed is None:
            continue
        for found, is_certain in ((time.value, True), (time.ends[1], False)):
            if found > allowed:
                yield Broken(stage, what, found, allowed, "seconds"), is_certain
                break
    rate = next(each for each in sheet.cells["online"]["speed"] if each.unit == "per second")
    for done, is_certain in ((rate.value, True), (rate.ends[0], False)):
        if bounds.load is not None and bounds.load > done:
            yield Broken("online", "the load", bounds.load, done, "per second"), is_certain
            break


def choose_machines(verdicts: Sequence[Verdict], stage: str | None = None) -> Verdict | None:
    """Return the cheapest feasible machines; None if none is feasible.

    Machines without a price come last: what they cost is not known.

    Args:
        verdicts: how each machine fares.
        stage: the only stage whose bounds count; None: those of all stages.
    """
    feasible = [
        verdict
        for verdict in verdicts
        if not any(stage in (None, each.stage) for each in verdict.broken)
    ]
    return min(feasible, key=_price, default=None)


def _price(verdict: Verdict) -> float:
    return float("inf") if verdict.monthly is None else verdict.monthly


def nearest_machines(verdicts: Sequence[Verdict]) -> Verdict:
    """Return the machines whose worst bound is exceeded by the least."""
    return min(verdicts, key=lambda each: each.worst)
