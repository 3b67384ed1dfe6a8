"""What unit tests of several folders share."""

import logging
from collections.abc import Iterator

import pytest

from millrace.models.common.installation import Installation
from millrace.models.ray.cluster import connect_to_ray


@pytest.fixture(scope="module")
def local_ray() -> Iterator[None]:
    """A Ray of its own, with one core."""
    with connect_to_ray("local", 1):
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
