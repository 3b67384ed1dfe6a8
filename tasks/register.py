"""Steps: log a run's evidence to MLflow, register the certified candidate, and set its aliases."""

import math
import time
from dataclasses import replace

from millrace.models.common.errors import WorkError
from millrace.models.common.installation import Installation
from millrace.models.config.model_kind import ModelKind
from millrace.models.config.pipeline import Pipeline
from millrace.models.config.serving_spec import RequireSpec
from millrace.models.data.snapshots import Snapshot
from millrace.models.registry.gates import HOW_TO_LABEL, HOW_TO_PROFILE, Promotion, decide
from millrace.models.registry.mlflow_pages import describe_verdict
from millrace.models.registry.mlflow_registry import registry_of
from millrace.models.registry.tracking import TrackedRun
from millrace.models.registry.version_files import (
    CANDIDATE_TAG,
    CERTIFICATE_TAG,
    CHALLENGER,
    CHAMPION,
    COMPARED_TAG,
    DATASET_TAG,
    FAILED,
    PASSED,
    ModelVersion,
    dataset_tag,
)
from millrace.serving.release.ledger import ledger_of
from millrace.serving.release.plan import select_target
from millrace.serving.release.release_state import derive_state
from millrace.tasks.compare_versions import compare_found
from millrace.tasks.kinds.steps import Exported, KindReport, steps_of
from millrace.tasks.progress import log
from millrace.tasks.promotion_cards import write_card
from millrace.tasks.release import MlflowRegistry
from millrace.tasks.retry import step


@step(timeout_seconds=900)
def register_version(
    kind: ModelKind,
    pipeline: Pipeline,
    installation: Installation,
    snapshot: Snapshot,
    exported: Exported,
    report: KindReport,
    run: TrackedRun,
) -> ModelVersion:
    """Log the evidence of a run, and register the chosen candidate with it."""
    certificate, chosen = exported.certificate, exported.chosen
    if chosen.stage is None:
        raise WorkError(
            f"the variant {chosen.name} was chosen, but was not measured", seen=chosen.reason
        )
    log_evidence(exported, report, run)
    tags = {
        CANDIDATE_TAG: chosen.name,
        CERTIFICATE_TAG: PASSED if certificate.passed else f"{FAILED}{chosen.reason}",
        DATASET_TAG: dataset_tag(snapshot.name, snapshot.version),
        "millrace.dataset_digest": snapshot.digest,
        **report.tags,
    }
    version = registry_of(installation).register(
        run,
        pipeline.name,
        kind,
        exported.files,
        exported.evidence,
        tags,
        steps_of(kind).save_model,
        report.description,
        report.metrics,
    )
    run.rename(f"{version.model} version {version.version}")
    log.info("registered %s version %s (%s)", version.model, version.version, chosen.name)
    return version


def log_evidence(exported: Exported, report: KindReport, run: TrackedRun) -> None:
    """Log the certificate, the texts of the report and the files to reproduce the candidates."""
    texts = {"certificate.json": exported.certificate.to_json(), **report.texts}
    run.log_report(texts, {})
    for file in (*exported.export.reproduction(), *report.files):
        run.log_file(file, f"export/{file.name}" if file.is_dir() else "export")


@step(timeout_seconds=4 * 3600)
def promote_version(
    pipeline: Pipeline, installation: Installation, exported: Exported, version: ModelVersion
) -> Promotion:
    """Set the aliases that the gates and `promotion` allow, and tag the version with the reason.

    The version must meet the requirements of a release. These requirements compare the version with
    the live version. If no version is live, they compare the version with the champion that a
    release would make live.
    """
    stage, gates = exported.chosen.stage, exported.export.gates
    score = None if stage is None else stage.score
    return promote(
        pipeline,
        installation,
        version,
        exported.chosen.reason,
        math.nan if score is None else score,
        smaller_is_better=gates.smaller_is_better,
    )


def promote(
    pipeline: Pipeline,
    installation: Installation,
    version: ModelVersion,
    refusal: str | None,
    metric: float,
    *,
    smaller_is_better: bool = False,
) -> Promotion:
    """Decide whether a new version becomes challenger and champion, and set these aliases.

    Args:
        pipeline: the pipeline, with the promotion settings.
        installation: where registry, release table and snapshots are.
        version: the new version.
        refusal: why the version did not pass its gates; None if it passed.
        metric: the version's metric on the test split.
        smaller_is_better: whether a smaller metric is better.
    """
    registry, model = registry_of(installation), pipeline.name
    known = MlflowRegistry(installation)
    known.note(version)
    decided = _decide_promotion(
        pipeline,
        known,
        installation,
        version,
        refusal,
        metric,
        smaller_is_better,
    )
    decided = _with_verdict(decided, known, version)
    registry.set_tags(version, {"millrace.promotion": decided.reason})
    if decided.beside and decided.beside.verdict:
        said = f"version {decided.beside.version}: {decided.beside.verdict}"
        registry.set_tags(version, {COMPARED_TAG: said})
        registry.add_to_description(version, describe_verdict(said))
        log.info("%s version %s, compared with %s", model, version.version, said)
    if decided.challenger:
        registry.set_alias(version, CHALLENGER)
    if decided.champion:
        registry.set_alias(version, CHAMPION)
    state = "champion" if decided.champion else "not champion"
    log.info("%s version %s is %s: %s", model, version.version, state, decided.reason)
    if decided.challenger:
        log.info("%s version %s: %s", model, version.version, decided.release)
    if decided.challenger and not decided.champion:
        write_card(known, version)
    return decided


def _decide_promotion(
    pipeline: Pipeline,
    registry: MlflowRegistry,
    installation: Installation,
    version: ModelVersion,
    refusal: str | None,
    metric: float,
    smaller_is_better: bool,
) -> Promotion:
    model, number = pipeline.name, version.version
    state = derive_state(ledger_of(installation).releases(model))
    wanted = select_target(state, registry.desired_versions(model).get(model), time.time())
    live = state.live.version if state.live else None
    incumbent = live or (wanted.version if wanted else None)
    beside = champion = requirement = None
    if refusal is None and incumbent is not None:
        is_live = incumbent == live
        beside = champion = registry.comparison(model, number, incumbent, is_live=is_live)
    if refusal is None and wanted is not None and wanted.version != incumbent:
        champion = registry.comparison(model, number, wanted.version, is_live=False)
    if refusal is None:
        # an incumbent that is not live and cannot be compared does not prevent a promotion
        is_compared = incumbent == live or (beside is not None and beside.metric is not None)
        previous = incumbent if is_compared else None
        requirement = registry.refusal(model, number, previous, unapproved=True)
    decided = decide(
        mode=pipeline.promotion.mode,
        refusal=refusal,
        metric=metric,
        champion=champion.version if champion else None,
        champion_metric=champion.metric if champion else None,
        smaller_is_better=smaller_is_better,
        requirement=requirement,
        waits=_find_wait(pipeline.promotion.require),
    )
    if refusal is not None:
        return decided
    release = _describe_release(requirement, pipeline.promotion.require)
    return replace(decided, release=release, beside=beside)


def _with_verdict(decided: Promotion, known: MlflowRegistry, version: ModelVersion) -> Promotion:
    """Return the decision with how the version compares with the one that it would replace.

    A run does not fail because both cannot be compared row by row.
    """
    beside = decided.beside
    if beside is None or beside.metric is None or not known.compares_quickly(version):
        return decided
    try:
        other = known.registry.version(version.model, beside.version)
        verdict = compare_found(known, other, version).sentence()
    except Exception as error:  # the other version's own files may fail in any way
        log.warning("no row-by-row comparison with version %s: %s", beside.version, error)
        return decided
    return replace(decided, beside=replace(beside, verdict=verdict))


def _find_wait(require: RequireSpec) -> str | None:
    """Return what a release waits for that only a registered version can get; None: for nothing."""
    if require.live_metric is not None:
        return "promotion.require.live_metric asks for labels of its own predictions"
    if require.slo:
        return f"promotion.require.slo asks for a serving profile: {HOW_TO_PROFILE}"
    return None


def _describe_release(requirement: str | None, require: RequireSpec) -> str:
    """Return whether a release would accept a version, in a sentence."""
    if requirement is not None:
        return f"a release would refuse it: {requirement}"
    if (wanted := require.live_metric) is not None:
        return (
            f"a release would take it, once {wanted.labels:,} of its own predictions have a label "
            f"and they are right often enough: {HOW_TO_LABEL}"
        )
    if require.slo:
        return f"a release would take it, once its goal serving.slo is proved: {HOW_TO_PROFILE}"
    if require.approval:
        return (
            "a release would take it, once a user who did not run its training has approved it "
            "with the tag millrace.approved_by"
        )
    return "a release would take it, once its answers on the server match the certified ones"
