"""Decides which version becomes challenger or champion, and whether a version may go live."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from millrace.models.config.serving_spec import LiveMetricSpec, RequireSpec

HOW_TO_LABEL = (
    "score rows that it has not learnt from, for a date of their own, with `millrace score FILE "
    "--version N --input ROWS --date DATE`, then `millrace feedback`"
)
HOW_TO_PROFILE = (
    "run `millrace release --profile`, or `millrace profile FILE` and then `millrace release`"
)
MANUAL = "promotion is manual: set the alias champion in the MLflow UI, or `millrace promote`"


@dataclass(frozen=True)
class Comparison:
    """The version that a new version would replace, measured on the new version's test split.

    Attributes:
        version: its number.
        is_live: whether it is live; else it has the alias champion.
        metric_name: name of the metric.
        metric: value of the metric; None if it could not be measured on that test split.
        candidate: name of its exported variant.
        size_bytes: total size of its files.
        verdict: whether the new version is better, with the difference, in a sentence; empty if
            both were not compared row by row.
    """

    version: int
    is_live: bool
    metric_name: str
    metric: float | None
    candidate: str = ""
    size_bytes: int | None = None
    verdict: str = ""


@dataclass(frozen=True)
class Promotion:
    """What to do with a new version, and why.

    Attributes:
        challenger: whether the version gets the alias `challenger`.
        champion: whether the version gets the alias `champion`.
        reason: the reason, a sentence for people.
        release: whether a release would accept the version, in a sentence; empty if the version did
            not pass its gates.
        beside: the version that the new version would replace; None if there is none.
    """

    challenger: bool
    champion: bool
    reason: str
    release: str = ""
    beside: Comparison | None = None


def decide(
    *,
    mode: Literal["auto", "manual"],
    refusal: str | None,
    metric: float,
    champion: int | None,
    champion_metric: float | None,
    smaller_is_better: bool = False,
    requirement: str | None = None,
    waits: str | None = None,
) -> Promotion:
    """Decide whether a new version gets the aliases challenger and champion.

    Args:
        mode: the pipeline's `promotion.mode`.
        refusal: why the version did not pass its gates; None if it did.
        metric: the version's metric on the test split.
        champion: number of the champion version; None if there is none.
        champion_metric: the champion's metric on the same test split; None if it could not be
            measured. A champion without a metric is never replaced.
        smaller_is_better: whether the smaller of two metrics is better, as for perplexity.
        requirement: why a release would refuse the version, other than a missing approval; None
            if it would not.
        waits: what a release would wait for, so that the version is no champion yet; None: nothing.
    """
    if refusal is not None:
        return Promotion(False, False, f"it did not pass its gates: {refusal}")
    if not math.isfinite(metric):
        return Promotion(False, False, f"its metric is {metric}")
    if requirement is not None:
        return Promotion(False, False, f"a release would refuse it: {requirement}")
    held = MANUAL if mode == "manual" else waits
    if held is not None:
        return Promotion(True, False, held)
    if champion is None:
        return Promotion(True, True, "there was no champion")
    if champion_metric is None:
        reason = f"champion version {champion} cannot be measured on this test split"
        return Promotion(True, False, reason)
    compared = f"{metric:.4f} against {champion_metric:.4f} of champion version {champion}"
    no_worse = metric <= champion_metric if smaller_is_better else metric >= champion_metric
    if no_worse:
        return Promotion(True, True, f"no worse: {compared}")
    return Promotion(True, False, f"worse: {compared}")


@dataclass(frozen=True)
class LiveFigures:
    """How a version's own predictions did on labels that came back, over all dates.

    Attributes:
        metric: `accuracy` or `rmse`.
        value: its value.
        labels: number of labels.
    """

    metric: str
    value: float
    labels: int


@dataclass(frozen=True)
class Credentials:
    """What is known of a version that is to go live.

    Attributes:
        passed: whether its certificate says that it passed its gates.
        metric: its metric on its test split; None if it could not be measured.
        metric_name: name of the metric.
        smaller_is_better: whether the smaller of two metrics is better.
        author: the user who ran the training; empty if not known.
        tags: its tags in the registry.
        unsigned: why it counts as not signed; empty if a key that this home trusts signed it.
        live: what `millrace feedback` found of its predictions; None if nothing is known.
        unproved: why no serving profile proves its latency goal here; empty if one does, or if none
            is required.
    """

    passed: bool
    metric: float | None
    metric_name: str
    author: str
    tags: Mapping[str, str]
    smaller_is_better: bool = False
    unsigned: str = ""
    live: LiveFigures | None = None
    unproved: str = ""

    @property
    def approved_by(self) -> str:
        """Who approved the version; empty if nobody did."""
        return self.tags.get("millrace.approved_by", "").strip()


@dataclass(frozen=True)
class Incumbent:
    """The version that is live.

    Attributes:
        version: its number.
        metric: its metric on the new version's test split; None if it could not be measured.
    """

    version: int
    metric: float | None


def refusal(
    require: RequireSpec, credentials: Credentials, incumbent: Incumbent | None
) -> str | None:
    """Return why a version may not go live; None if it may.

    Args:
        require: the requirements in the version's pipeline file. For an unsigned version, the
            requirements of the home folder's owner, because nobody knows who wrote the version's
            pipeline file.
        credentials: what is known of the version.
        incumbent: the live version to compare with; None for no comparison.
    """
    if require.signed and credentials.unsigned:
        return f"it is not trusted: {credentials.unsigned}"
    if require.certificate and not credentials.passed:
        return "its certificate says that it did not pass its gates"
    if require.slo and credentials.unproved:
        return f"{credentials.unproved}: {HOW_TO_PROFILE}"
    if require.approval and (fault := _approval_fault(credentials)) is not None:
        return fault
    fault = _live_fault(require.live_metric, credentials.live)
    if fault is not None or incumbent is None or require.max_metric_drop is None:
        return fault
    return _drop(require.max_metric_drop, credentials, incumbent)


def _approval_fault(credentials: Credentials) -> str | None:
    if not credentials.approved_by:
        return "nobody approved it: set the tag millrace.approved_by, then run `millrace release`"
    if not credentials.author:
        return "it is not known who ran its training, so its approval cannot be checked"
    if credentials.approved_by == credentials.author:
        return f"{credentials.author} ran its training, so another user has to approve it"
    return None


def _live_fault(required: LiveMetricSpec | None, live: LiveFigures | None) -> str | None:
    if required is None:
        return None
    if live is None or live.labels < required.labels:
        return (
            f"{0 if live is None else live.labels:,} of its own predictions have a label, and "
            f"promotion.require.live_metric asks for {required.labels:,}: {HOW_TO_LABEL}, then "
            "`millrace release`"
        )
    is_error = live.metric == "rmse"
    # A NaN is neither below nor above, and is refused.
    if live.value <= required.value if is_error else live.value >= required.value:
        return None
    where = "above" if is_error else "below"
    return (
        f"its live {live.metric} of {live.value:.4g} on {live.labels:,} labels is {where} "
        f"{required.value:g}, which promotion.require.live_metric asks for"
    )


def _drop(allowed: float, credentials: Credentials, incumbent: Incumbent) -> str | None:
    name, mine, other = credentials.metric_name, credentials.metric, incumbent.metric
    if mine is None or other is None:
        which = "it" if mine is None else f"version {incumbent.version}, which is live,"
        return (
            f"{which} cannot be measured on the new version's test split, so the versions cannot "
            "be compared; to skip the comparison, train with "
            "promotion.require.max_metric_drop: null"
        )
    loss = mine - other if credentials.smaller_is_better else other - mine
    drop = loss / abs(other) if other else loss
    # A NaN fails every comparison, so the condition is negated: NaN must be refused.
    if not drop <= allowed:
        live = f"{other:.4f} of version {incumbent.version}"
        where = "above" if credentials.smaller_is_better else "below"
        return f"its {name} of {mine:.4f} is {drop:.1%} {where} {live}; allowed is {allowed:.1%}"
    return None
