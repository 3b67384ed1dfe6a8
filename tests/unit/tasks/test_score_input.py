"""The input of a batch job: the rows of a dataset stay while they are scored."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from millrace.models.common.installation import Installation
from millrace.models.data.snapshot_use import find_held_versions
from millrace.models.inference.features import Encoding, Feature
from millrace.serving.batch.row_job import RowJob
from millrace.tasks.batch import score_input
from millrace.tasks.batch.score_input import is_dataset, open_held_input

JOB = RowJob("m", 7, "digest", Path(), Encoding((Feature("a", "number"),), "t"), ())
ROWS = pa.table({"a": [1, 2]})


@pytest.fixture
def installation(tmp_path: Path) -> Installation:
    return Installation(tmp_path, "sqlite:///m.db", (tmp_path / "tables").as_uri())


@pytest.fixture
def table(tmp_path: Path) -> str:
    uri = tmp_path / "tables" / "datasets" / "m"
    deltalake.write_deltalake(uri, ROWS)
    return str(uri)


def test_a_dataset_is_known_in_every_spelling(
    tmp_path: Path, installation: Installation, table: str
) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "tables")
    (tmp_path / "tables" / "datasets" / "rows.csv").write_text("a\n1\n")
    spellings = (table, f"{table}/", f"file://{table}", f"{table}/../m")
    for each in (*spellings, str(tmp_path / "link" / "datasets" / "m")):
        assert is_dataset(each, installation)
    files = tmp_path / "tables" / "datasets"
    (tmp_path / "tables" / "datasets" / "other").symlink_to(table)
    assert is_dataset(str(files / "other"), installation)
    for other in (files / "rows.csv", files, files / "gone", tmp_path / "*.csv"):
        assert not is_dataset(str(other), installation)


def test_rows_that_are_no_dataset_are_not_held(tmp_path: Path, installation: Installation) -> None:
    other = tmp_path / "other"
    deltalake.write_deltalake(other, ROWS)
    with open_held_input(str(other), JOB, installation) as found:
        assert found.rows == 2
        assert find_held_versions(str(other)) == frozenset()
    assert not (other / "_readers").exists()


def test_a_version_is_held_before_its_files_are_opened(
    installation: Installation, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[frozenset[int]] = []
    open_input = score_input.open_input
    publish: Iterator[Any] = iter([lambda: deltalake.write_deltalake(table, ROWS, mode="append")])

    def open_after_another_version(*given: Any) -> Any:
        held.append(find_held_versions(table))
        next(publish, lambda: None)()
        return open_input(*given)

    monkeypatch.setattr(score_input, "open_input", open_after_another_version)
    with open_held_input(table, JOB, installation) as found:
        assert (found.manifest["version"], found.rows) == (1, 4)
        assert held == [{0}, {1}]
        assert find_held_versions(table) == {1}
    assert find_held_versions(table) == frozenset()
