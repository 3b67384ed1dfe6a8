import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from models.delta_files import file_paths


@pytest.mark.parametrize("name", ["plain", "with space", "ha#sh", "ümlaut"])
def test_the_files_of_a_local_table_can_be_opened_whatever_its_folder_is_called(
    tmp_path, name: str
) -> None:
    folder = tmp_path / name
    folder.mkdir()
    write_deltalake(str(folder), pa.table({"a": [1, 2, 3]}))
    (path,) = file_paths(DeltaTable(str(folder)))
    assert pq.read_table(path).num_rows == 3
