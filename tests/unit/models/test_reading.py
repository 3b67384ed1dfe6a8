from pathlib import Path

import pytest

from millrace.models.common.errors import InputError
from millrace.models.config.dataset_spec import DatasetSpec
from millrace.models.data.part_tasks import LocalTasks
from millrace.models.data.read_changes import read_changes
from millrace.models.data.sources.open_source import open_source


def test_too_many_values_are_told_with_the_key(tmp_path: Path) -> None:
    rows = "".join(f"c{n},{n},{n % 2}\n" for n in range(1100))
    (tmp_path / "r.csv").write_text("customer,a,t\n" + rows)
    spec = DatasetSpec(source="r.csv", target="t")
    with pytest.raises(InputError, match=r"dataset\.key: \[customer\]"):
        read_changes(open_source(spec, tmp_path), None, None, tmp_path, LocalTasks(1))
