"""Step: from the source to a snapshot."""

from millrace.models import tables
from millrace.models.inference import describe
from millrace.models.pipeline import Pipeline
from millrace.models.places import Places
from millrace.models.snapshots import Snapshot
from millrace.models.verdict import nulls_hint
from millrace.tasks import progress
from millrace.tasks.progress import log
from millrace.tasks.retry import step


@step(timeout_seconds=6 * 3600)
def ingest_dataset(pipeline: Pipeline, places: Places) -> Snapshot:
    """Bring the source into the dataset's table and return the snapshot."""
    with progress.bar("ingest", None, "rows") as bar:
        snapshot = tables.ingest(pipeline, places, on_progress=bar.update)
    state = "new" if snapshot.created else "unchanged"
    log.info("snapshot %s (%s): %s rows", snapshot.version, state, f"{snapshot.rows:,}")
    log.info("%s", describe(snapshot.schema))
    if snapshot.quarantined:
        log.warning("%s rows in quarantine: %s", snapshot.quarantined, dict(snapshot.reasons))
    if hint := nulls_hint(snapshot):
        log.warning("%s", hint)
    return snapshot
