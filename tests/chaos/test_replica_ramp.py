"""Replicas follow a load that rises and falls; `make soak` has the long form."""

import sys
from pathlib import Path

import pytest

from tests.chaos.replica_ramp import SPEC, run_ramp
from tests.integration.replica_stand import replica_stand

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the wheel is for Linux")


def test_one_to_three_and_back_without_a_failed_request(tmp_path: Path) -> None:
    with replica_stand(tmp_path / "home", SPEC) as stand:
        stand.until_serving(1)
        stand.promote(1)
        found = run_ramp(stand, 5_000)
    assert found.failed == []
    assert found.requests > 5_000
    assert found.numbers[0] == found.numbers[-1] == 1
    assert max(found.numbers) == 3
    rise = found.numbers[: found.numbers.index(3) + 1]
    fall = found.numbers[found.numbers.index(3) :]
    assert (rise, fall) == (sorted(rise), sorted(fall, reverse=True))
