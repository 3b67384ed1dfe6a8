from collections.abc import Iterator

import pytest

from millrace.models.common.ray_cluster import connect_to_ray
from tests.stand_ins.rows_here import without_ray


@pytest.fixture(scope="module")
def local_ray() -> Iterator[None]:
    """A Ray of its own, with one core."""
    with connect_to_ray("local", 1):
        yield


@pytest.fixture
def rows_here(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs run in this process, but where a test has the marker `through_ray`."""
    if request.node.get_closest_marker("through_ray"):
        request.getfixturevalue("local_ray")
    else:
        without_ray(monkeypatch)
