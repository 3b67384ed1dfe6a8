"""Step: the aliases of a new version."""

from models.errors import MillraceError
from models.package import ModelVersion
from models.pipeline import Pipeline
from models.places import Places
from models.promotion import Promotion, decide
from models.registry import CHALLENGER, CHAMPION, registry_of
from models.snapshots import Snapshot
from tasks.compared import metric_of
from tasks.export import Exported
from tasks.progress import log
from tasks.retry import step


@step(timeout_seconds=4 * 3600)
def promote_version(
    pipeline: Pipeline,
    places: Places,
    snapshot: Snapshot,
    exported: Exported,
    version: ModelVersion,
) -> Promotion:
    """Set the aliases that the gates and `promotion.mode` allow, and say why on the version."""
    registry = registry_of(places)
    champion = registry.by_alias(pipeline.name, CHAMPION)
    compared: float | None = None
    if champion is not None and pipeline.promotion.mode == "auto" and exported.chosen.passed:
        try:
            package = registry.fetch(champion).graph
            name = exported.certificate.metric_name
            compared = metric_of(package, pipeline, snapshot, name)
        except (MillraceError, KeyError) as error:
            log.warning("champion %s cannot be compared: %s", champion.version, error)
    stage = exported.chosen.stage
    promotion = decide(
        mode=pipeline.promotion.mode,
        refusal=exported.chosen.reason,
        metric=stage.metric if stage and stage.metric is not None else float("nan"),
        champion=champion.version if champion else None,
        champion_metric=compared,
    )
    registry.set_tags(version, {"millrace.promotion": promotion.reason})
    if promotion.challenger:
        registry.set_alias(version, CHALLENGER)
    if promotion.champion:
        registry.set_alias(version, CHAMPION)
    log.info("%s: %s", "champion" if promotion.champion else "not champion", promotion.reason)
    return promotion
