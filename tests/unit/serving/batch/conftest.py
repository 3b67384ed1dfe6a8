from collections.abc import Iterator

import pytest

from millrace.models.common.ray_cluster import connect_to_ray


@pytest.fixture(scope="module")
def local_ray() -> Iterator[None]:
    """A Ray of its own, with one core."""
    with connect_to_ray("local", 1):
        yield
