"""A Ray Train trainer without two actors that Millrace's training has no use for.

Each is a process that takes 2 to 4 s of a core to import Ray Train:

- `DatasetManager` splits Ray datasets among the workers. Millrace's workers read the snapshot.
- `PlacementGroupCleaner` frees the workers' CPUs if the controller dies and the driver lives on.
  Millrace's command ends then, and with its job Ray frees them.
"""

from typing import Any

from ray.train.v2._internal.callbacks.datasets import DatasetsCallback
from ray.train.v2._internal.callbacks.placement_group_callback import PlacementGroupCleanerCallback

UNUSED = (DatasetsCallback, PlacementGroupCleanerCallback)


def lean(trainer: Any) -> Any:
    """Return the trainer class `trainer` without the unused actors."""

    class LeanTrainer(trainer):  # type: ignore[misc]
        def _create_default_callbacks(self) -> list[Any]:
            callbacks = super()._create_default_callbacks()
            return [each for each in callbacks if not isinstance(each, UNUSED)]

    return LeanTrainer
