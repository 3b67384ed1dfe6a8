"""The promotion card: what would change if a version took the place of the one that is live."""

from collections.abc import Iterator
from dataclasses import dataclass

from rich.filesize import decimal

from millrace.models.common.counted import counted, short
from millrace.models.comparison.live_metric import wilson
from millrace.models.comparison.paired_scores import PairedResult
from millrace.serving.profile.expectation import Expectation, Recorded
from millrace.serving.profile.replay import clock
from millrace.tasks.reports.markdown import table

HEADING = "### If this version is promoted"
UNKNOWN = "?"
NOTHING = "–"
MILLION = 1e6


@dataclass(frozen=True)
class VersionRecord:
    """What is known of a version.

    Attributes:
        version: its number.
        variant: its exported variant.
        metric_name: the certified metric.
        metric: its value on the test split; None if there is none.
        rows: rows of the test split; None if that is not known.
        size_bytes: size of its files.
        memory_mb: megabytes of the processes that compute it; None without a profile.
        settings: the configuration that its profile chose, in words; empty without a profile.
        goal: whether its profile proves its goal, in words; empty without a profile.
        expected: what it would have done with the recorded requests; None if that is not known.
        unknown: why that is not known, or what makes it known.
    """

    version: int
    variant: str = ""
    metric_name: str = ""
    metric: float | None = None
    rows: int | None = None
    size_bytes: int | None = None
    memory_mb: float | None = None
    settings: str = ""
    goal: str = ""
    expected: Expectation | None = None
    unknown: str = ""


@dataclass(frozen=True)
class Traffic:
    """The recorded requests in figures; attributes as of `Recorded`."""

    requests: int
    hours: float
    peak: str
    peak_rate: float
    measured_p99_ms: float | None


@dataclass(frozen=True)
class PromotionCard:
    """What would change.

    Attributes:
        model: the registered model.
        candidate: the version that would be promoted.
        served: the version that is live; None if none is.
        traffic: the recorded requests; None if there are none.
        rows: what is compared, now, and after.
        notes: what the figures rest on, in sentences.
        is_champion: whether the candidate has the alias already, so that a release is next.
        refusal: why a release would refuse the candidate for want of a proof; empty if not.
    """

    model: str
    candidate: VersionRecord
    served: VersionRecord | None
    traffic: Traffic | None
    rows: tuple[tuple[str, str, str], ...]
    notes: tuple[str, ...]
    is_champion: bool = False
    refusal: str = ""

    @property
    def next_step(self) -> str:
        """The command that makes the candidate live, or that proves its goal before."""
        if self.refusal:
            profile = f"millrace profile FILE --version {self.candidate.version}"
            return "millrace release --profile" if self.is_champion else profile
        promote = f"millrace promote {self.model} {self.candidate.version}"
        return "millrace release" if self.is_champion else promote

    @property
    def head(self) -> tuple[str, str, str]:
        """The titles of the columns."""
        now = "nothing is live" if self.served is None else f"now: version {self.served.version}"
        return "", now, f"after: version {self.candidate.version}"

    def as_markdown(self) -> str:
        """Return the card for the version's page in MLflow."""
        notes = [f"- {note}" for note in self.notes]
        return "\n\n".join([HEADING, table(self.head, self.rows), "\n".join(notes)]).rstrip()


def make_card(
    model: str,
    candidate: VersionRecord,
    served: VersionRecord | None,
    recorded: Recorded | None,
    price_per_hour: float | None = None,
    compared: PairedResult | None = None,
) -> PromotionCard:
    """Return what would change if a version were promoted.

    Args:
        model: the registered model.
        candidate: the version.
        served: the version that is live; None if none is.
        recorded: the recorded requests; None if there are none.
        price_per_hour: cost of the machine per hour.
        compared: how the candidate compares with the live version on the same rows.
    """
    now = VersionRecord(0) if served is None else served
    traffic = None if recorded is None else _traffic(recorded)
    rows = [
        *_accuracy_rows(now, candidate, compared),
        *_load_rows(now, candidate, traffic, price_per_hour),
        ("memory", _megabytes(now.memory_mb), _megabytes(candidate.memory_mb)),
        ("size of the files", _bytes(now.size_bytes), _bytes(candidate.size_bytes)),
        ("variant", now.variant or UNKNOWN, candidate.variant or UNKNOWN),
        ("configuration", now.settings or UNKNOWN, candidate.settings or UNKNOWN),
        ("goal", now.goal or UNKNOWN, candidate.goal or UNKNOWN),
    ]
    if served is None:
        rows = [(what, NOTHING, after) for what, _, after in rows]
    known = [(what, one, two) for what, one, two in rows if {one, two} - {UNKNOWN, NOTHING}]
    notes = tuple(_notes(model, candidate, served, recorded, price_per_hour))
    return PromotionCard(model, candidate, served, traffic, tuple(known), notes)


def _traffic(recorded: Recorded) -> Traffic:
    return Traffic(
        recorded.requests,
        recorded.hours,
        clock(recorded.peak),
        recorded.peak_rate,
        recorded.measured_p99_ms,
    )


def _accuracy_rows(
    now: VersionRecord, after: VersionRecord, compared: PairedResult | None
) -> Iterator[tuple[str, str, str]]:
    name = after.metric_name or "metric"
    yield name, _metric(now), _metric(after)
    if compared is not None:
        ends = f"{compared.low:+.4f} to {compared.high:+.4f}"
        difference = f"{compared.difference:+.4f} (95%: {ends}): {compared.verdict}"
        yield f"{name} on the same {compared.rows:,} rows", NOTHING, difference


def _metric(record: VersionRecord) -> str:
    if record.metric is None:
        return UNKNOWN
    if record.metric_name != "accuracy" or not record.rows:
        return f"{record.metric:.4g}"
    low, high = wilson(round(record.metric * record.rows), record.rows)
    return f"{record.metric:.4g} (95%: {low:.4f} to {high:.4f})"


def _load_rows(
    now: VersionRecord, after: VersionRecord, traffic: Traffic | None, price: float | None
) -> Iterator[tuple[str, str, str]]:
    one, two = now.expected, after.expected
    if traffic is None:
        return
    peak = f"p99 at the peak ({traffic.peak}, {short(traffic.peak_rate)} requests/s)"
    yield f"{peak}, expected", _milliseconds(one), _milliseconds(two)
    if traffic.measured_p99_ms is not None:
        yield f"{peak}, measured", f"{_number(traffic.measured_p99_ms)} ms", NOTHING
    yield "goal in the recorded requests", _verdict(one), _verdict(two)
    yield "CPU share at the peak", _share(one, "peak_share"), _share(two, "peak_share")
    yield "CPU share", _share(one, "share"), _share(two, "share")
    if price is not None:
        yield "cost of a million requests", _cost(one, price), _cost(two, price)


def _milliseconds(expected: Expectation | None) -> str:
    return UNKNOWN if expected is None else f"{_number(expected.p99_ms)} ms"


def _verdict(expected: Expectation | None) -> str:
    return UNKNOWN if expected is None else expected.verdict


def _share(expected: Expectation | None, name: str) -> str:
    return UNKNOWN if expected is None else f"{getattr(expected, name):.1%}"


def _cost(expected: Expectation | None, price: float) -> str:
    if expected is None:
        return UNKNOWN
    return f"{_number(price / 3600 * expected.machine_seconds * MILLION)} dollars"


def _number(value: float) -> str:
    return short(value)


def _megabytes(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.0f} MB"


def _bytes(value: int | None) -> str:
    return UNKNOWN if value is None else decimal(value)


def _notes(
    model: str,
    candidate: VersionRecord,
    served: VersionRecord | None,
    recorded: Recorded | None,
    price: float | None,
) -> Iterator[str]:
    if recorded is None:
        yield f"no requests for {model} are recorded in the last 24 hours"
    else:
        yield _describe_record(recorded)
    for each in (served, candidate):
        if each is not None and each.unknown:
            yield f"version {each.version}: {each.unknown}"
        if each is not None and each.expected is not None and each.expected.too_large:
            many = each.expected.too_large
            yield f"version {each.version} would refuse {many:,} requests with too many rows"
    if price is None and recorded is not None:
        yield "batch.price_per_hour in the pipeline file adds the cost of a million requests"


def _describe_record(recorded: Recorded) -> str:
    hours = recorded.hours
    span = f"{hours:.3g} hours" if hours >= 1 else f"{60 * hours:.3g} minutes"
    said = f"{counted(recorded.requests, 'request')} within {span}"
    if recorded.left_out:
        replayed = recorded.requests - recorded.left_out
        said += f", of which the {replayed:,} in the busiest minutes are replayed"
    if recorded.estimated:
        said += f"; the rows of {recorded.estimated:.0%} are estimated from their bytes"
    return said
