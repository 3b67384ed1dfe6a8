from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyarrow import fs

from millrace.models.data.sources.delta_files import dataset_of, file_paths


@pytest.mark.parametrize("name", ["plain", "with space", "ha#sh", "ümlaut"])
def test_the_files_of_a_local_table_can_be_opened_whatever_its_folder_is_called(
    tmp_path, name: str
) -> None:
    folder = tmp_path / name
    folder.mkdir()
    write_deltalake(str(folder), pa.table({"a": [1, 2, 3]}))
    (path,) = file_paths(DeltaTable(str(folder)))
    assert pq.read_table(path).num_rows == 3


@pytest.mark.parametrize("place", ["{}", "file://{}"])
def test_a_local_table_is_read_by_a_native_file_system(tmp_path: Path, place: str) -> None:
    folder = tmp_path / "a b%c" / "table"
    rows = pa.table({"x": [1, 2], "p": ["a b", "c/d"]})
    write_deltalake(folder, rows, partition_by=["p"])
    path = str(folder) if place == "{}" else quote(str(folder))
    dataset = dataset_of(DeltaTable(place.format(path)))
    assert isinstance(dataset.filesystem.base_fs, fs.LocalFileSystem)
    assert dataset.to_table().sort_by("x").equals(rows)
