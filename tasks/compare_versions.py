"""Compares two registered versions on the same rows, and says which is better and by how much."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from millrace.models.common.errors import InputError
from millrace.models.common.installation import Installation
from millrace.models.comparison.paired_scores import PairedResult, Verdict
from millrace.models.comparison.slices import FEW_ROWS, SliceResult, compare_slices
from millrace.models.config.pipeline import Pipeline
from millrace.models.registry.mlflow_registry import Registry, registry_of
from millrace.models.registry.named_version import in_words, version_named
from millrace.models.registry.version_files import CHAMPION, ModelVersion
from millrace.serving.release.ledger import ledger_of
from millrace.serving.release.release_state import derive_state
from millrace.tasks.kinds.certified import pipeline_of
from millrace.tasks.kinds.steps import CertifiedFigures, VersionEvidence, steps_of
from millrace.tasks.release import MlflowRegistry

RUN_ID = re.compile(r"[0-9a-f]{32}")
VALID = "NAME/VERSION, NAME@ALIAS, NAME (the champion), or the ID of an MLflow run"
MOST_SLICES = 12
"""Slices that are shown; `--json` has all."""


@dataclass(frozen=True)
class ComparedVersion:
    """One of the two versions.

    Attributes:
        model: the registered model.
        version: its number.
        figures: what its variant was measured to be, on the machine of its certificate.
        dollars_per_million: what a million rows or tokens cost at full load; None without
            `batch.price_per_hour`.
    """

    model: str
    version: int
    figures: CertifiedFigures
    dollars_per_million: float | None = None

    def __str__(self) -> str:
        """Return the version in words."""
        return f"{self.model} version {self.version}"


@dataclass(frozen=True)
class VersionComparison:
    """How the second version compares with the first one.

    Attributes:
        verdict: whether the second one is better.
        first: the first version.
        second: the second version.
        metric: what is compared.
        dataset: the snapshot whose test split both answered, in words.
        result: the difference with its interval.
        slices: both on parts of the rows; empty if the rows have no column with few values.
        refusal: why a release would refuse the second version; None if it would not.
        caution: why the first version may have learnt rows of this test split; None if it has not.
    """

    verdict: Verdict
    first: ComparedVersion
    second: ComparedVersion
    metric: str
    dataset: str
    result: PairedResult
    slices: tuple[SliceResult, ...] = field(repr=False)
    refusal: str | None = None
    caution: str | None = None

    def sentence(self) -> str:
        """Return the verdict with the difference, in a sentence."""
        return f"{self.verdict}: {describe_result(self.result, self.metric)}"


def compare_versions(
    installation: Installation,
    first: str | None,
    second: str,
    columns: Sequence[str] | None = None,
) -> VersionComparison:
    """Compare two versions on the test split that the second one was certified on.

    Args:
        installation: where the registry, the release table and the snapshots are.
        first: the version to compare with; None: the champion of the second one's model.
        second: the version that is judged.
        columns: the columns by whose values the rows are cut; None: those with few values.

    Raises:
        InputError: there is no such version, or both cannot be compared.
        MillraceError: the rows cannot be read, or a version cannot answer them.
    """
    registry = registry_of(installation)
    judged = find_version(second, registry)
    other = find_version(first or f"{judged.model}@{CHAMPION}", registry)
    if (other.model, other.version) == (judged.model, judged.version):
        raise InputError(
            f"{in_words(judged)} would be compared with itself",
            valid="two versions",
            hint="name another version first: `millrace compare NAME/1 NAME/2`",
        )
    known = MlflowRegistry(installation)
    return compare_found(known, other, judged, columns)


def find_version(name: str, registry: Registry) -> ModelVersion:
    """Return the version that a user named.

    Raises:
        InputError: there is no such version, or the run registered none.
    """
    if RUN_ID.fullmatch(name):
        found = registry.of_run(name)
        if found is None:
            raise InputError(
                f"the run {name} registered no version",
                valid=VALID,
                hint="its page in the MLflow UI says what it did",
            )
        return found
    _, slash, number = name.partition("/")
    if slash and not number.isdecimal():
        raise InputError(f"{number!r} is no version's number", seen=name, valid=VALID)
    return version_named(name, registry, valid=VALID)


def compare_found(
    known: MlflowRegistry,
    other: ModelVersion,
    judged: ModelVersion,
    columns: Sequence[str] | None = None,
) -> VersionComparison:
    """Compare two versions that were found in the registry; arguments as in `compare_versions`."""
    packages = [known.package(each) for each in (other, judged)]
    evidence: list[VersionEvidence] = [
        steps_of(each.version.kind).evidence(each, known.installation) for each in packages
    ]
    if type(evidence[0]) is not type(evidence[1]):
        raise InputError(
            f"{in_words(other)} is a {other.kind.name} model, and {in_words(judged)} a "
            f"{judged.kind.name} model",
            valid="two versions that answer the same rows",
        )
    try:
        scores = evidence[1].paired_scores(packages[0], columns)
    except KeyError as error:
        raise InputError(
            f"{in_words(other)} reads a column that the rows of {in_words(judged)} lack",
            seen=str(error.args[0]),
            valid="two versions that read the same data",
        ) from error
    measured = [each.measured() for each in evidence]
    if scores is None:
        raise InputError(
            f"{in_words(other)} has the metric {measured[0].name}, and {in_words(judged)} "
            f"{measured[1].name}",
            valid="two versions with the same metric, and a test split with rows",
        )
    prices = [pipeline_of(each).batch.price_per_hour for each in packages]
    sides = [
        ComparedVersion(v.model, v.version, m.figures, _cost(price, m.figures.per_second))
        for v, m, price in zip((other, judged), measured, prices, strict=True)
    ]
    result = scores.result()
    previous = _incumbent(known, judged)
    pipelines = [pipeline_of(each) for each in packages]
    dataset = pipelines[1].name
    return VersionComparison(
        result.verdict,
        sides[0],
        sides[1],
        scores.metric,
        f"{result.rows:,} rows of the test split of {dataset}",
        result,
        compare_slices(scores),
        known.refusal(judged.model, judged.version, previous),
        _caution(*pipelines),
    )


def _caution(first: Pipeline, second: Pipeline) -> str | None:
    """Return why the first version may have been trained on rows of the second one's test split."""
    places = ((each.name, each.dataset.key, each.dataset.split) for each in (first, second))
    if len({str(place) for place in places}) == 1:
        return None
    return (
        "the versions have other test splits (the dataset, its key or its split differs), so the "
        "first one may have been trained on these rows, and then looks better than it is"
    )


def _incumbent(known: MlflowRegistry, judged: ModelVersion) -> int | None:
    """Return the version that a release would replace: the live one, else the champion."""
    state = derive_state(ledger_of(known.installation).releases(judged.model))
    if state.live is not None:
        return state.live.version
    champion = known.desired_versions(judged.model).get(judged.model)
    return champion.version if champion else None


def _cost(price_per_hour: float | None, per_second: float | None) -> float | None:
    if price_per_hour is None or not per_second:
        return None
    return price_per_hour / 3600 / per_second * 1e6


def describe_result(result: PairedResult, metric: str) -> str:
    """Return the difference of two versions in words, with its interval and its p-value."""
    values = f"{result.first:.4g} → {result.second:.4g}"
    ends = f"{result.low:+.4f} to {result.high:+.4f}"
    unit = " nats a token" if metric == "perplexity" else ""
    gain = f"{result.difference:+.4f}{unit} ({ends})"
    return f"{metric} {values}, {gain}, p = {result.p_value:.2g}, {result.rows:,} rows"


def describe_comparison(found: VersionComparison) -> Iterator[tuple[str, str]]:
    """Yield the rows of a table that says how two versions compare."""
    yield "verdict", f"{found.second} is {_words(found.verdict)} {found.first}"
    yield found.metric, describe_result(found.result, found.metric).removeprefix(f"{found.metric} ")
    yield "test", found.result.test
    yield "rows", found.dataset
    if found.caution:
        yield "caution", found.caution
    one, two = found.first.figures, found.second.figures
    yield "variant", _both(one.variant, two.variant)
    yield "size", _numbers(one.size_bytes, two.size_bytes, "KiB", 1 / 1024)
    yield "latency", _numbers(one.latency_ms, two.latency_ms, "ms")
    yield "throughput", _numbers(one.per_second, two.per_second, "/s")
    costs = (found.first.dollars_per_million, found.second.dollars_per_million)
    if any(each is not None for each in costs):
        yield "cost of a million", _numbers(*costs, "dollars")
    if one.machine != two.machine:
        yield "measured on", _both(one.machine or "unknown", two.machine or "unknown")
    yield "a release", f"refuses it: {found.refusal}" if found.refusal else "takes it"


def describe_slices(found: VersionComparison) -> Iterator[tuple[str, ...]]:
    """Yield a row for each slice, the one that lost most first, the small ones last."""
    for each in found.slices[:MOST_SLICES]:
        result = each.result
        small = f"fewer than {FEW_ROWS} rows"
        yield (
            f"{each.column} = {each.value}",
            f"{result.rows:,}",
            f"{result.first:.4g} → {result.second:.4g}",
            f"{result.difference:+.4f} ({result.low:+.4f} to {result.high:+.4f})",
            small if each.is_small else each.verdict,
        )


def _words(verdict: Verdict) -> str:
    return {
        "better": "better than",
        "worse": "worse than",
        "no difference shown": "not shown to differ from",
    }[verdict]


def _both(one: str, two: str) -> str:
    return one if one == two else f"{one} → {two}"


def _numbers(one: float | None, two: float | None, unit: str, scale: float = 1.0) -> str:
    known = [None if each is None else each * scale for each in (one, two)]
    words = ["?" if n is None else f"{n:,.0f}" if n >= 1000 else f"{n:.4g}" for n in known]
    change = f" (x{two / one:.3g})" if one and two else ""
    return f"{words[0]} → {words[1]} {unit}{change}"
