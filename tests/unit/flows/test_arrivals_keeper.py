"""The thread that keeps the records of arrivals within their limits goes on after a fault."""

from pathlib import Path

import pytest

from millrace.flows.triggers.arrivals_keeper import ArrivalsKeeper
from millrace.models.common.installation import Installation
from millrace.serving.guard.arrivals_log import FOLDER


def test_a_fault_is_reported_once_and_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keeper = ArrivalsKeeper(Installation(tmp_path, "", ""), pause=7)
    assert keeper.check() == 7
    folder = tmp_path / FOLDER
    folder.mkdir()
    (folder / "1795608000000000-8000.log").mkdir()
    for _ in range(2):
        assert keeper.check() == 7
    assert caplog.text.count("records of arrivals cannot be kept") == 1
    (folder / "1795608000000000-8000.log").rmdir()
    log = folder / "1795608000000000-8000.log"
    log.write_text("1795607999000000 m 1 grpc 9 850 0 .\n")
    keeper.check()
    assert not log.exists()
