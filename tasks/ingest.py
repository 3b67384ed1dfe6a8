"""Step: from the source to a snapshot."""

from millrace.models.common.installation import Installation
from millrace.models.config.pipeline import Pipeline
from millrace.models.data import ingest
from millrace.models.data.publish_decision import nulls_hint
from millrace.models.data.schema import describe_schema
from millrace.models.data.snapshots import Snapshot
from millrace.tasks import progress
from millrace.tasks.progress import log
from millrace.tasks.retry import step


@step(timeout_seconds=6 * 3600)
def ingest_dataset(pipeline: Pipeline, installation: Installation) -> Snapshot:
    """Bring the source into the dataset's table and return the snapshot."""
    with progress.bar("ingest", None, "rows") as bar:
        snapshot = ingest.ingest(pipeline, installation, on_progress=bar.update)
    state = "new" if snapshot.created else "unchanged"
    log.info("snapshot %s (%s): %s rows", snapshot.version, state, f"{snapshot.rows:,}")
    log.info("%s", describe_schema(snapshot.schema))
    if snapshot.quarantined:
        log.warning("%s rows in quarantine: %s", snapshot.quarantined, dict(snapshot.reasons))
    if hint := nulls_hint(snapshot):
        log.warning("%s", hint)
    return snapshot
