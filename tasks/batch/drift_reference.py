"""The reference of a batch job's drift: the snapshot that the model was trained on.

The snapshot has statistics of its columns. It has no statistics of token counts, because token
counts depend on the model. It has no statistics of predictions either. The statistics of the target
cannot replace them, because a regression's predictions spread less than its target. So tokens are
counted, and predictions are made, for a sample of the snapshot's rows.
"""

from collections.abc import Callable
from dataclasses import replace

from millrace.models.common.errors import InputError, TransientError
from millrace.models.common.installation import Installation
from millrace.models.data.snapshots import Snapshot, open_snapshot
from millrace.models.registry.version_files import ModelVersion
from millrace.serving.batch.monitoring.drift import Bins
from millrace.tasks.progress import log

PREDICTION = "prediction"
SAMPLE_ROWS = 1024
"""Rows that are sampled from a snapshot to count their tokens or make predictions for them."""


def open_training_snapshot(version: ModelVersion, installation: Installation) -> Snapshot | None:
    """Return the snapshot that a version was trained on; None if it no longer exists."""
    if version.dataset is None:
        return None
    try:
        return open_snapshot(installation, *version.dataset)
    except InputError:
        return None


def bins_unless_gone(
    counted: Callable[[Snapshot], tuple[Bins, ...]], snapshot: Snapshot
) -> tuple[Bins, ...]:
    """Return the bins that `counted` makes of a snapshot; none if its rows cannot be read."""
    try:
        return counted(snapshot)
    # They were removed meanwhile, by this home or another program, or their store is away.
    except (InputError, TransientError, OSError) as error:
        message = "drift is not measured, because the training snapshot %s cannot be read: %s"
        log.warning(message, snapshot.uri, error)
        return ()


def bins_of(snapshot: Snapshot) -> tuple[tuple[Bins, ...], tuple[Bins, ...]]:
    """Return the bins of the features and of the target, without columns that lack statistics."""
    schema, known = snapshot.schema, snapshot.statistics
    found = {c.name: Bins.of(c, known[c.name]) for c in schema.columns if c.name in known}
    features = tuple(bins for name in schema.features if (bins := found.get(name)) is not None)
    target = found.get(schema.target)
    return features, () if target is None else (replace(target, column=PREDICTION),)
