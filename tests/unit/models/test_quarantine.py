from pathlib import Path

import pytest
from deltalake import DeltaTable, write_deltalake

from millrace.models.data.quarantine import Quarantine
from millrace.models.data.row_checks import bad_rows

SECRET = "customer-4711"


def publish(uri: str, folder: Path, row: str) -> None:
    """Put one bad row into a quarantine table."""
    quarantine = Quarantine(folder)
    quarantine.add(bad_rows(["x: null"], [row]))
    quarantine.finish().publish(uri, "a.csv", "digest")


@pytest.mark.parametrize("is_of_an_earlier_home", [True, False])
def test_the_log_names_no_values_of_bad_rows(tmp_path: Path, is_of_an_earlier_home: bool) -> None:
    uri = str(tmp_path / "quarantine")
    publish(uri, tmp_path, "{}")
    if is_of_an_earlier_home:
        earlier = DeltaTable(uri).to_pyarrow_table()
        uri = str(tmp_path / "earlier")
        write_deltalake(uri, earlier)
    publish(uri, tmp_path, f'{{"id": "{SECRET}"}}')
    publish(uri, tmp_path, f'{{"id": "{SECRET}", "x": 1}}')
    assert DeltaTable(uri).to_pyarrow_table().num_rows == 3
    log = [file.read_text() for file in Path(uri, "_delta_log").glob("*.json")]
    assert len(log) == 3 + is_of_an_earlier_home
    assert not [entry for entry in log if SECRET in entry]
