"""What unit tests of several folders share."""

import logging
from collections.abc import Iterator

import pytest

from millrace.models.common.installation import Installation
from millrace.models.ray import cluster
from millrace.models.ray.embedded import EmbeddedRay
from millrace.models.ray.fork_imports import BATCH_IMPORTS, OF_RAY_DATA


class KeptRay(EmbeddedRay):
    """A Ray that stays when its connection ends, for the next module's."""

    def close(self) -> None:
        """Leave it running."""

    def end(self) -> None:
        """End it."""
        super().close()


@pytest.fixture(scope="session")
def kept_ray() -> Iterator[KeptRay]:
    """A Ray with one core, for all modules of this worker: its start takes seconds."""
    kept = KeptRay(1, BATCH_IMPORTS)
    yield kept
    kept.end()


@pytest.fixture(scope="module")
def local_ray(kept_ray: KeptRay) -> Iterator[None]:
    """A connection of the module's own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cluster, "take_embedded", lambda *_: kept_ray)
        with cluster.connect_to_ray("local", 1, None, BATCH_IMPORTS, OF_RAY_DATA):
            yield


@pytest.fixture(scope="session")
def mlflow_places(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """An embedded MLflow of its own; its database takes seconds to make, so all tests share it."""
    home = tmp_path_factory.mktemp("mlflow")
    return Installation(home, f"sqlite:///{home}/mlflow.db", str(home / "tables")).prepared()


@pytest.fixture(autouse=True)
def unchanged_logger() -> Iterator[None]:
    """Undo what a test does to Millrace's logger: a command sets it up for its whole process."""
    log = logging.getLogger("millrace")
    handlers, propagate, level = list(log.handlers), log.propagate, log.level
    yield
    log.handlers[:], log.propagate = handlers, propagate
    log.setLevel(level)
