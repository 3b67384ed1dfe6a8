"""A few hundred malformed requests; `python -m tests.chaos.fuzz` sends 20,000."""

import sys
from pathlib import Path

import pytest

from tests.chaos.fuzz import run

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the wheel is for Linux")


def test_no_malformed_request_ends_a_server(tmp_path: Path) -> None:
    found = run(tmp_path, requests=600, seed=1)
    assert found.wrong == []
    assert found.sent == {"http": 200, "grpc": 200, "openai": 200}
    assert found.checks == 6
