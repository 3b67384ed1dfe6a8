"""The short form of `make soak`."""

import sys
from pathlib import Path

import pytest

from tests.chaos.soak import soak

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the wheel is for Linux")


def test_no_request_is_lost_or_answered_wrongly_while_versions_are_swapped(tmp_path: Path) -> None:
    report = soak(tmp_path, swaps=6, requests=3_000, rate=150)
    assert report.failed == {}
    assert report.wrong == 0
    assert set(report.by_version) == {"1", "2"}
    assert sum(report.by_version.values()) == report.requests
