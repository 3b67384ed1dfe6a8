"""Three faults of the machine; `python -m tests.integration.faults` tries a hundred."""

import os
import sys
from collections.abc import Iterator

import pytest

from tests.integration.faults import Site, a_site, try_case

pytestmark = [
    pytest.mark.skipif(
        sys.platform != "linux" or os.getuid() != 0,
        reason="a full disk is a tmpfs, which root mounts",
    ),
    pytest.mark.timeout(900),
]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, prefect_api: str) -> Iterator[Site]:
    with a_site(tmp_path_factory.mktemp("faults"), prefect_api, ("release", "score")) as made:
        yield made


@pytest.mark.parametrize(
    ("fault", "command"),
    [
        ("home full", "release"),
        ("tables full", "score"),
        ("mlflow.db overwritten", "release"),
    ],
)
def test_a_fault_is_told_in_time_and_nothing_is_lost(site: Site, fault: str, command: str) -> None:
    assert try_case(site, fault, command, seed=1).faults == ()
