import pytest

from tests.stand_ins.rows_here import without_ray


@pytest.fixture
def rows_here(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs run in this process, but where a test has the marker `through_ray`."""
    if request.node.get_closest_marker("through_ray"):
        request.getfixturevalue("local_ray")
    else:
        without_ray(monkeypatch)
