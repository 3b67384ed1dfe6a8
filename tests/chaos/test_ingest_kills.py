from pathlib import Path

from tests.chaos.ingest_kills import soak


def test_a_killed_ingestion_leaves_nothing_half_visible(tmp_path: Path) -> None:
    assert len(list(soak(tmp_path, kills=4))) == 4
