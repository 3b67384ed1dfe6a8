"""Step: the aliases of a new version, by what a release of it would say."""

import math
import time
from dataclasses import replace

from millrace.models.common.installation import Installation
from millrace.models.config.pipeline import Pipeline
from millrace.models.registry.gates import Promotion, decide
from millrace.models.registry.mlflow_registry import CHALLENGER, CHAMPION, registry_of
from millrace.models.registry.version_files import ModelVersion
from millrace.serving.release.ledger import ledger_of
from millrace.serving.release.plan import select_target
from millrace.serving.release.release_state import derive_state
from millrace.tasks.kinds.steps import Exported
from millrace.tasks.progress import log
from millrace.tasks.release import MlflowRegistry
from millrace.tasks.retry import step


@step(timeout_seconds=4 * 3600)
def promote_version(
    pipeline: Pipeline, installation: Installation, exported: Exported, version: ModelVersion
) -> Promotion:
    """Set the aliases that the gates and `promotion` allow, and say why on the version.

    It is compared with the live version, as a release would compare it, or else with the champion
    that is to be released. The same requirements decide as there.
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
    """Decide on a new version, and set its aliases.

    Args:
        pipeline: says who promotes.
        installation: where registry, release table and snapshots are.
        version: the new one.
        refusal: why it did not pass its gates; None if it did.
        metric: its metric on the test split.
        smaller_is_better: of two metrics.
    """
    registry, model = registry_of(installation), pipeline.name
    decided = _decided(
        pipeline,
        MlflowRegistry(installation),
        installation,
        version,
        refusal,
        metric,
        smaller_is_better,
    )
    registry.set_tags(version, {"millrace.promotion": decided.reason})
    if decided.challenger:
        registry.set_alias(version, CHALLENGER)
    if decided.champion:
        registry.set_alias(version, CHAMPION)
    log.info("%s: %s", "champion" if decided.champion else "not champion", decided.reason)
    if decided.challenger:
        log.info("%s version %s: %s", model, version.version, decided.release)
    return decided


def _decided(
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
        # a version that is not live and cannot be measured does not stand in the way
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
    )
    if refusal is not None:
        return decided
    said = _said(requirement, needs_approval=pipeline.promotion.require.approval)
    return replace(decided, release=said, beside=beside)


def _said(requirement: str | None, *, needs_approval: bool) -> str:
    """Return what a release would say of a version."""
    if requirement is not None:
        return f"a release would refuse it: {requirement}"
    if needs_approval:
        return "a release takes it once somebody else approved: set the tag millrace.approved_by"
    return "a release would take it, once its answers hold on the server too"
