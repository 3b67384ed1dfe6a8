"""Four faults of a release; `python -m tests.chaos.faults` tries a hundred."""

import os
import sys
from collections.abc import Iterator

import pytest

from tests.chaos.fault_site import Site, a_site, planted
from tests.chaos.faults import try_case

pytestmark = [
    pytest.mark.skipif(
        sys.platform != "linux" or os.getuid() != 0,
        reason="a full disk is a tmpfs, which root mounts",
    ),
    pytest.mark.timeout(900),
]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, prefect_api: str) -> Iterator[Site]:
    with a_site(tmp_path_factory.mktemp("faults"), prefect_api, ("release",), planted) as made:
        yield made


@pytest.mark.parametrize(
    "fault", ["home full", "tables full", "mlflow.db overwritten", "mlflow silent but for health"]
)
def test_a_fault_is_told_in_time_and_nothing_is_lost(site: Site, fault: str) -> None:
    assert try_case(site, fault, "release", seed=1).faults == ()
