"""Step: from the source to a snapshot."""

from models import tables
from models.inference import describe
from models.pipeline import Pipeline
from models.places import Places
from models.snapshots import Snapshot
from models.verdict import nulls_hint
from tasks import progress
from tasks.progress import log
from tasks.retry import step


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
