from pathlib import Path

import pytest

from millrace.models.data.folder import Folder


def test_nothing_stays_of_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        Folder(str(tmp_path)).write_json("a.json", object())
    assert list(tmp_path.iterdir()) == []
