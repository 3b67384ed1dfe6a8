import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from millrace.models.common.installation import Installation
from millrace.tasks.retention.disk_use import measure, measure_disk


@pytest.fixture
def home(tmp_path: Path) -> Installation:
    folder = tmp_path / "home"
    return Installation(folder, "", str(folder / "tables")).prepared()


def test_the_disk_is_measured_by_kind(home: Installation, tmp_path: Path) -> None:
    (home.logs / "a.log").write_bytes(b"12345")
    part = Path(home.table("datasets", "x", "_delta_log"))
    part.mkdir(parents=True)
    (part / "0.json").write_bytes(b"123")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "large").write_bytes(b"0" * 1000)
    (home.staging / "link").symlink_to(outside)
    disk = measure_disk(home)
    assert (disk["logs"], disk["snapshots"]) == (5, 3)
    assert disk["staging"] < 200
    assert "predictions" not in disk
    assert measure_disk(replace(home, tables_uri=f"file://{home.tables_uri}")) == disk
    assert "snapshots" not in measure_disk(replace(home, tables_uri="s3://bucket/tables"))


def test_a_file_that_vanishes_does_not_hide_its_neighbours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).write_bytes(b"123")

    class Scan(list[os.DirEntry[str]]):
        def __enter__(self) -> Iterator[os.DirEntry[str]]:
            (tmp_path / "b").unlink()
            return iter(self)

        def __exit__(self, *_: object) -> None: ...

    def scan(folder: Path) -> Scan:
        with real(folder) as entries:
            return Scan(sorted(entries, key=lambda entry: entry.name))

    real = os.scandir
    monkeypatch.setattr("os.scandir", scan)
    assert measure(tmp_path) == (2, 6)
