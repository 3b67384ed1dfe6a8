from collections.abc import Iterator

import pytest

from millrace.models.common.ray_cluster import connected


@pytest.fixture(scope="module")
def local_ray() -> Iterator[None]:
    """A Ray of its own, with one core."""
    with connected("local", 1):
        yield
