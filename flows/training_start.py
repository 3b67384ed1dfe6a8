"""The start of a training: its connection to Ray, and what is slow to import.

Without `millrace up`, Prefect's temporary server takes seconds to start, and meanwhile there is
nothing else to do.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from millrace.flows.services import temporary_prefect
from millrace.flows.settings import Settings
from millrace.models.common.installation import Installation
from millrace.models.common.slow_step import report_while
from millrace.models.config.model_kind import kind_of_family
from millrace.models.config.pipeline import Pipeline
from millrace.models.config.pipeline_file import load_pipeline
from millrace.models.ray.cluster import connect_to_ray
from millrace.models.ray.fork_imports import OF_RAY_TRAIN, TRAINING_IMPORTS
from millrace.models.registry.tracking import client
from millrace.tasks.kinds.steps import steps_of


@contextmanager
def connect_for_training(chosen: Settings, pipeline: Pipeline) -> Iterator[None]:
    """Connect to Ray while the block runs, as `connect_to_ray` does, for a training."""
    with connect_to_ray(
        *(chosen.ray_address, pipeline.training.workers, chosen.warm_ray()),
        *(TRAINING_IMPORTS, OF_RAY_TRAIN),
    ):
        yield


@contextmanager
def training_begun(chosen: Settings, file: Path, overrides: Sequence[str] = ()) -> Iterator[None]:
    """Begin what a training needs, if a Prefect server is starting; it lasts until the block ends.

    The flow of the block uses this connection to Ray. Where no server is starting, it makes its
    own, and imports what it needs when it needs it.
    """
    if temporary_prefect.address() is None:
        yield
        return
    pipeline = load_pipeline(file, overrides)
    with ExitStack() as opened:
        with report_while("starting Ray, and loading torch and MLflow"):
            opened.enter_context(connect_for_training(chosen, pipeline))
            _import_ahead(pipeline, chosen.installation())
        yield


def _import_ahead(pipeline: Pipeline, installation: Installation) -> None:
    from millrace.models.training import trainer

    del trainer
    steps = steps_of(kind_of_family(pipeline.model.family))
    for step in (steps.prepare, steps.export):
        del step  # it is imported now
    with suppress(Exception):  # the flow opens MLflow again, and says what is wrong
        client(installation.tracking_uri)
