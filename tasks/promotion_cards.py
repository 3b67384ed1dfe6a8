"""Makes promotion cards from the registry and the record of arrivals, and writes them to MLflow."""

import json
import math
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial

from millrace.models.common.errors import InputError, MillraceError
from millrace.models.common.installation import Installation
from millrace.models.comparison.paired_scores import PairedResult
from millrace.models.registry.serving_profiles import read_times
from millrace.models.registry.tracking import TrackedRun
from millrace.models.registry.version_files import CHALLENGER, CHAMPION, ModelVersion, Package
from millrace.serving.guard.arrivals_table import read_arrivals
from millrace.serving.profile.batch_workload import configured
from millrace.serving.profile.expectation import Expectation, Recorded, expect, prepare
from millrace.serving.profile.record import MEMORY, ServingProfile
from millrace.serving.profile.search import BatchConfiguration
from millrace.serving.profile.service_times import ServiceTimes
from millrace.serving.release.ledger import ledger_of
from millrace.serving.release.release_state import derive_state
from millrace.serving.triton.server_index import COLUMNS
from millrace.tasks.compare_versions import compare_found
from millrace.tasks.kinds.certified import pipeline_of
from millrace.tasks.kinds.steps import steps_of
from millrace.tasks.profiled_version import load_profile
from millrace.tasks.progress import log
from millrace.tasks.release import MlflowRegistry
from millrace.tasks.reports.promotion_card import (
    HEADING,
    PromotionCard,
    VersionRecord,
    make_card,
)

SECONDS = 24 * 3600.0
"""How much of the record of arrivals is replayed."""
FILE = "promotion_card.json"
HOW_TO = "`millrace profile FILE --version {}` makes known what it would have done"


def promotion_cards(installation: Installation) -> Iterator[PromotionCard]:
    """Yield the card of each model that has a version to promote, by name.

    It is the champion if that is not live yet, else the challenger.

    Raises:
        TransientError: MLflow does not answer.
    """
    known = MlflowRegistry(installation)
    for model in sorted(known.registry.models()):
        live = _live(installation, model)
        for alias in (CHAMPION, CHALLENGER):
            found = known.registry.by_alias(model, alias)
            if found is not None and found.version != live:
                refusal = known.lacked_proof(found)
                is_champion = alias == CHAMPION
                yield replace(card_of(known, found), is_champion=is_champion, refusal=refusal)
                break


def card_of(
    known: MlflowRegistry, candidate: ModelVersion, *, compares: bool = True
) -> PromotionCard:
    """Return the card of a version against the one that is live, or else the champion.

    Args:
        known: the registry.
        candidate: the version.
        compares: whether both answer the same rows, which takes seconds.

    Raises:
        InputError: the version's files cannot be read.
        TransientError: MLflow does not answer.
    """
    package = known.package(candidate)
    served = _served(known, candidate)
    recorded = _recorded(known.installation, package)
    price = pipeline_of(package).batch.price_per_hour
    return make_card(
        candidate.model,
        _record(known, candidate, recorded),
        None if served is None else _record(known, served, recorded),
        recorded,
        price,
        None if served is None or not compares else _compared(known, served, candidate),
    )


def write_card(known: MlflowRegistry, candidate: ModelVersion) -> None:
    """Write the card on the version's page in MLflow, and to its run."""
    try:
        card = card_of(known, candidate, compares=False)  # the page has the verdict of the run
        known.registry.replace_section(candidate, HEADING, card.as_markdown())
        run = TrackedRun(known.installation.tracking_uri, "", candidate.run_id)
        run.log_text(json.dumps(card, default=vars, indent=1), FILE)
    except Exception as error:  # a run or a profile does not fail because of its page
        why = next(iter(str(error).splitlines()), "")
        log.warning("the promotion card of this version was not written: %s", why)


def _live(installation: Installation, model: str) -> int | None:
    return derive_state(ledger_of(installation).releases(model)).live_version


def _served(known: MlflowRegistry, candidate: ModelVersion) -> ModelVersion | None:
    """Return the version that the candidate would replace; None if there is none."""
    live = _live(known.installation, candidate.model)
    found = None
    if live is not None:
        with suppress(InputError):  # it was deleted
            found = known.registry.version(candidate.model, live)
    found = found or known.registry.by_alias(candidate.model, CHAMPION)
    return None if found is None or found.version == candidate.version else found


def _recorded(installation: Installation, package: Package) -> Recorded | None:
    """Return the last day's requests of a model; None if there are none."""
    model, now = package.version.model, time.time()
    found = read_arrivals(installation, (model, model + COLUMNS), now - SECONDS, now)
    if not len(found.times):
        return None
    recorded = prepare(found, _bytes_per_row(package))
    return recorded if recorded.requests else None


def _bytes_per_row(package: Package) -> float:
    """Return the bytes of a row; infinite if not known, so that each request counts as one row."""
    try:
        rows = steps_of(package.version.kind).load_rows(package)
        return float(sum(each.nbytes / len(each) for each in rows.values()))
    except MillraceError:
        return math.inf


def _record(
    known: MlflowRegistry, version: ModelVersion, recorded: Recorded | None
) -> VersionRecord:
    package = known.package(version)
    evidence = steps_of(version.kind).evidence(package, known.installation)
    measured = evidence.measured()
    common = partial(
        VersionRecord,
        version=version.version,
        variant=measured.figures.variant,
        metric_name=measured.name,
        metric=measured.metric,
        rows=measured.rows,
        size_bytes=sum(file.stat().st_size for file in package.files.values()),
    )
    try:
        profile = load_profile(known.registry, version)
    except InputError as error:
        return common(unknown=f"its serving profile cannot be used: {error.seen}")
    if profile is None:
        return common(unknown=f"it has no serving profile: {HOW_TO.format(version.version)}")
    expected, unknown = None, ""
    if recorded is not None:
        try:
            serving = profile.configuration.apply(evidence.artifact().serving)
            expected = _expected(known, version, profile, configured(serving), recorded)
        except InputError as error:
            unknown = f"{error.what}: {error.seen}"
    return common(
        memory_mb=profile.figures.get(MEMORY),
        settings=str(profile.configuration),
        goal=profile.summary(),
        expected=expected,
        unknown=unknown,
    )


def _expected(
    known: MlflowRegistry,
    version: ModelVersion,
    profile: ServingProfile,
    configuration: BatchConfiguration,
    recorded: Recorded,
) -> Expectation:
    """Return what a profiled version would have done with the recorded requests.

    Raises:
        InputError: that is not known of it.
    """
    if profile.goal.p99_ms is None:
        raise InputError(
            "what it would have done is not known",
            seen="the event model replays no streams, as their tokens are not recorded",
        )
    if not profile.service_times:
        raise InputError(
            "what it would have done is not known",
            seen=f"its profile has no times of batches; {HOW_TO.format(version.version)}",
        )
    text = read_times(known.registry, version, profile.service_times)
    try:
        times = ServiceTimes.from_json(json.loads(text))
    except ValueError as error:
        raise InputError(
            "its times of batches cannot be read",
            seen=f"{error}; {HOW_TO.format(version.version)}",
        ) from error
    return expect(recorded, configuration, times, profile.goal.p99_ms, profile.cores)


def _compared(
    known: MlflowRegistry, served: ModelVersion, candidate: ModelVersion
) -> PairedResult | None:
    """Return how both compare on the same rows; None if that takes long, or cannot be said."""
    if not known.compares_quickly(candidate):
        return None
    try:
        return compare_found(known, served, candidate).result
    except Exception as error:  # the other version's own files may fail in any way
        log.warning("no row-by-row comparison with version %s: %s", served.version, error)
        return None
