"""The short form of a part of `make soak`."""

from pathlib import Path

from tests.chaos.retention_crowd import soak


def test_nights_with_retention_beside_readers_and_a_job(tmp_path: Path) -> None:
    assert len(list(soak(tmp_path, nights=4, readers=5))) == 5
