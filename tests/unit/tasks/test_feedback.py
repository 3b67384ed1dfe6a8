"""Labels that came back, joined to predictions of a real table, by a version of a real registry."""

from pathlib import Path
from typing import Any

import deltalake
import numpy as np
import pyarrow as pa
import pytest

from millrace.models.common.errors import InputError
from millrace.models.common.installation import Installation
from millrace.models.registry.mlflow_registry import registry_of
from millrace.models.registry.version_files import CHAMPION
from millrace.tasks.feedback import FEEDBACK, describe_fall, read_feedback
from tests.integration.planted import LABELS, good, ingest_rows, plant

NAME = "watched"
ROWS = 400


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    folder = tmp_path_factory.mktemp("home")
    made = Installation(folder, f"sqlite:///{folder}/mlflow.db", str(folder / "tables")).prepared()
    ingest_rows(made, NAME, 200)
    plant(made, NAME, good(0, metric=0.9))
    registry = registry_of(made)
    registry.set_alias(registry.version(NAME, 1), CHAMPION)
    for day in ("2026-11-20", "2026-11-21"):
        write_predictions(made, day)
    return made


def write_predictions(home: Installation, day: str) -> None:
    rows = {
        "_key": [str(n) for n in range(ROWS)],
        "prediction": [LABELS[n % 3] for n in range(ROWS)],
        "score": pa.array(np.full(ROWS, 0.75), pa.float32()),
        "model_version": pa.array([1] * ROWS, pa.int32()),
        "_row": list(range(ROWS)),
        "date": [day] * ROWS,
    }
    uri = home.table("predictions", NAME)
    deltalake.write_deltalake(uri, pa.table(rows), mode="append", partition_by=["date"])


def write_labels(folder: Path, wrong: int, **columns: Any) -> str:
    """Write labels of which the first `wrong` are other than the prediction."""
    lines = ["id,t" + "".join(f",{name}" for name in columns)]
    for n in range(ROWS):
        label = LABELS[(n + (n < wrong)) % 3]
        more = "".join(f",{value}" for value in columns.values())
        lines.append(f"{n},{label}{more}")
    file = folder / "labels.csv"
    file.write_text("\n".join(lines) + "\n")
    return str(file)


def test_each_day_has_its_accuracy_with_an_interval(home: Installation, tmp_path: Path) -> None:
    found = read_feedback(home, NAME, write_labels(tmp_path, 40), key=("id",))
    assert [(each.date, each.version, each.labels) for each in found.days] == [
        ("2026-11-20", 1, ROWS),
        ("2026-11-21", 1, ROWS),
    ]
    assert all(each.value == 0.9 and each.low < 0.9 < each.high for each in found.days)  # type: ignore[operator]
    assert (found.labels, found.matched, found.unreadable) == (ROWS, ROWS, 0)
    assert found.calibration == pytest.approx(0.15)
    assert not found.falls
    stored = deltalake.DeltaTable(home.table(FEEDBACK, NAME)).to_pyarrow_table()
    assert stored.num_rows == 2


def test_labels_with_a_date_are_those_of_that_date(home: Installation, tmp_path: Path) -> None:
    labels = write_labels(tmp_path, 200, date="2026-11-21")
    found = read_feedback(home, NAME, labels, key=("id",))
    assert [(each.date, each.value) for each in found.days] == [("2026-11-21", 0.5)]
    assert read_feedback(home, NAME, labels, key=("id",), date="2026-11-20").days == ()
    stored = deltalake.DeltaTable(home.table(FEEDBACK, NAME)).to_pyarrow_table()
    assert stored["value"].to_pylist() == [0.9, 0.5]


def test_labels_without_a_prediction_and_bad_ones_are_counted(
    home: Installation, tmp_path: Path
) -> None:
    file = tmp_path / "few.csv"
    file.write_text("id,t\n0,x\n1,y\n1,z\n9999,x\n2,\n")
    found = read_feedback(home, NAME, str(file), key=("id",), date="2026-11-20")
    assert (found.labels, found.matched, found.unreadable) == (4, 2, 1)
    assert found.days[0].value == 0.5  # of the key 1 the last label counts


def test_lines_that_cannot_be_read_are_counted(home: Installation, tmp_path: Path) -> None:
    file = tmp_path / "ragged.csv"
    file.write_text("id,t\n0,x\n1,y,z\n")
    found = read_feedback(home, NAME, str(file), key=("id",), date="2026-11-20")
    assert (found.labels, found.matched, found.unreadable) == (2, 1, 1)


def test_earlier_days_count_where_each_night_has_its_own_labels(
    home: Installation, tmp_path: Path
) -> None:
    for day, wrong in (("2026-11-20", 0), ("2026-11-21", 150)):
        labels = write_labels(tmp_path, wrong)
        found = read_feedback(home, NAME, labels, key=("id",), date=day)
    assert (found.falls[1].days, found.falls[1].now) == (1, 0.625)


@pytest.mark.parametrize(
    ("model", "text", "key", "words"),
    [
        ("none", "id,t\n0,x\n", ("id",), "no registered version 'none'"),
        (f"{NAME}/x", "id,t\n0,x\n", ("id",), "name"),
        (NAME, "id,t\n0,x\n", (), "no key by which predictions are found"),
        (NAME, "id,t\n0,x\n", ("no",), "no key by which predictions are found"),
        (NAME, "id,u\n0,x\n", ("id",), "names a column"),
    ],
)
def test_what_cannot_be_joined_is_said(
    home: Installation, tmp_path: Path, model: str, text: str, key: tuple[str, ...], words: str
) -> None:
    file = tmp_path / "labels.csv"
    file.write_text(text)
    with pytest.raises(InputError, match=words):
        read_feedback(home, model, str(file), key=key)


def test_a_fall_is_said_in_words() -> None:
    from millrace.models.comparison.live_metric import Counted, find_fall

    fall = find_fall(Counted(1000, 900), [Counted(500, 450), Counted(500, 380)])
    assert fall is not None
    assert describe_fall(fall).startswith("its accuracy fell from 0.9000 to 0.7600 in the newest")
