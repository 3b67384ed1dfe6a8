"""Labels that came back, joined to predictions of a real table, by a version of a real registry."""

import json
import shutil
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import deltalake
import numpy as np
import pyarrow as pa
import pytest

from millrace.models.common.errors import InputError
from millrace.models.common.installation import Installation
from millrace.models.config.serving_spec import RequestLogSpec
from millrace.models.registry.mlflow_registry import registry_of
from millrace.models.registry.version_files import CHAMPION
from millrace.serving.request_table import FIELDS, Collected, collect_requests
from millrace.tasks.feedback import describe_fall, read_feedback
from millrace.tasks.feedback_history import FEEDBACK
from millrace.tasks.label_table import LABEL_TABLES, stored_labels
from millrace.tasks.reports.feedback_plots import feedback_pictures
from millrace.tasks.retention.forget import forget
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


@pytest.fixture(autouse=True)
def no_labels(home: Installation) -> None:
    """Begin each test without labels of an earlier one."""
    shutil.rmtree(home.table(LABEL_TABLES, NAME), ignore_errors=True)


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


def test_dates_that_are_none_are_refused_and_times_are_read(
    home: Installation, tmp_path: Path
) -> None:
    found = read_feedback(
        home, NAME, write_labels(tmp_path, 0, date="2026-11-20T23:30:00Z"), key=("id",)
    )
    assert [each.date for each in found.days] == ["2026-11-20"]
    for bad in ("20.11.2026", "20261120", "yesterday"):
        with pytest.raises(InputError, match="cells that are no dates"):
            read_feedback(home, NAME, write_labels(tmp_path, 0, date=bad), key=("id",))


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


def write_requests(home: Installation, answers: list[tuple[str, str, float]]) -> Path:
    """Write a file of the request log: key, prediction and seconds since the epoch."""
    folder = home.home / "request_log" / NAME
    folder.mkdir(parents=True, exist_ok=True)
    lines = [
        {"time": at, "version": 1, "request": "r", "number": 0, "key": {"id": key}}
        | {"row": {"x": 1.5}, "prediction": label, "score": 0.75}
        for key, label, at in answers
    ]
    text = "".join(f"{json.dumps(line)}\n" for line in lines)
    file = folder / f"{time.time_ns()}-1.jsonl"
    file.write_text(text + '{"time": 1, "half')
    return file


def test_online_answers_are_joined_too_the_last_of_a_key(
    home: Installation, tmp_path: Path
) -> None:
    now = datetime.now(UTC) - timedelta(days=1)
    day, date = now.timestamp(), now.date().isoformat()
    write_requests(home, [("0", "y", day), ("0", "x", day + 1), ("1", "x", day), ("2", "z", day)])
    found = read_feedback(home, NAME, write_labels(tmp_path, 0), key=("id",), date=date)
    (online,) = found.days
    assert (online.source, online.date, online.labels) == ("online", date, 3)
    assert online.value == pytest.approx(2 / 3)
    stored = deltalake.DeltaTable(home.table(FEEDBACK, NAME)).to_pyarrow_table()
    assert set(stored["source"].to_pylist()) == {"batch", "online"}
    assert [*(home.home / "request_log" / NAME).glob("*.jsonl")] == []


def test_old_days_and_too_many_are_removed_and_a_key_is_forgotten(home: Installation) -> None:
    now = datetime.now(UTC)
    days = [now - timedelta(days=back) for back in (40, 3, 2)]
    write_requests(home, [(str(n), "x", day.timestamp()) for n, day in enumerate(days)])
    uri = home.table("requests", NAME)
    spec = RequestLogSpec(keep_days=30)
    assert collect_requests(home, NAME, spec) == Collected(3, 1)
    kept = deltalake.DeltaTable(uri).to_pyarrow_table()
    assert {"1", "2"} <= set(kept["_key"].to_pylist())
    assert days[0].date().isoformat() not in kept["date"].to_pylist()
    outcome = forget(home, NAME, ["2"], lambda _: None)
    assert next(each.rows for each in outcome.tables if each.table == "requests") >= 1
    assert "2" not in deltalake.DeltaTable(uri).to_pyarrow_table()["_key"].to_pylist()
    write_requests(home, [("7", "x", now.timestamp())])
    collect_requests(home, NAME, RequestLogSpec(max_gib=1e-9))
    assert deltalake.DeltaTable(uri).to_pyarrow_table().num_rows == 0


def test_a_file_whose_rows_are_in_the_table_is_not_read_again(home: Installation) -> None:
    file = write_requests(home, [("5", "x", datetime.now(UTC).timestamp())])
    again = file.read_bytes()
    assert collect_requests(home, NAME).rows == 1
    file.write_bytes(again)
    assert collect_requests(home, NAME).rows == 0
    keys = deltalake.DeltaTable(home.table("requests", NAME)).to_pyarrow_table()["_key"].to_pylist()
    assert keys.count("5") == 1


def test_the_pictures_show_each_version_and_the_calibration(
    home: Installation, tmp_path: Path
) -> None:
    found = read_feedback(home, NAME, write_labels(tmp_path, 40), key=("id",))
    figures = feedback_pictures(found)
    (axes,) = figures["live.png"].axes
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert {"version 1, batch", "version 1, certified"} <= set(labels)
    (axes,) = figures["calibration.png"].axes
    (points,) = axes.collections
    assert points.get_offsets().tolist() == [[0.75, pytest.approx(0.9, abs=0.01)]]
    assert feedback_pictures(replace(found, history=(), reliability=())) == {}


def test_a_table_from_before_predictions_were_texts_is_kept_and_another_type_collected(
    home: Installation, tmp_path: Path
) -> None:
    uri = home.table("requests", "numbered")
    at = datetime(2026, 11, 20, tzinfo=UTC)
    old = {"date": "2026-11-20", "time": at, "model_version": 1, "request": "r", "row_number": 0}
    old |= {"row": "{}", "prediction": 2.5, "score": 2.5, "file": "f", "_key": "a"}
    schema = pa.schema([*FIELDS, ("_key", pa.string())])
    place = schema.get_field_index("prediction")
    typed = pa.Table.from_pylist([old], schema.set(place, pa.field("prediction", pa.float64())))
    deltalake.write_deltalake(uri, typed, partition_by=["date"])
    folder = home.home / "request_log" / "numbered"
    folder.mkdir(parents=True)
    line = {"time": 1.8e9, "version": 2, "request": "r", "number": 0, "key": {"id": "b"}}
    good = {**line, "row": {"x": 1}, "prediction": "blue", "score": 0.5}
    lines = [good, {**good, "row": None}]
    (folder / "1-1.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    assert collect_requests(home, "numbered") == Collected(1, 1)
    kept = deltalake.DeltaTable(uri).to_pyarrow_table().sort_by("_key")
    assert kept.select(["_key", "prediction"]).to_pydict() == {
        "_key": ["a", "b"],
        "prediction": ["2.5", "blue"],
    }


def test_a_model_without_a_champion_has_feedback(home: Installation, tmp_path: Path) -> None:
    ingest_rows(home, "fresh", 50)
    plant(home, "fresh", good(0))
    rows = {"_key": ["1"], "prediction": ["x"], "score": [0.5], "model_version": [1], "_row": [0]}
    uri = home.table("predictions", "fresh")
    deltalake.write_deltalake(uri, pa.table({**rows, "date": ["2026-11-20"]}))
    file = tmp_path / "labels.csv"
    file.write_text("id,t\n1,x\n")
    found = read_feedback(home, "fresh", str(file), key=("id",))
    assert [(each.version, each.value) for each in found.days] == [(1, 1.0)]


def test_what_no_setting_limits_stays(home: Installation) -> None:
    long_ago = datetime.now(UTC) - timedelta(days=60)
    write_requests(home, [("long ago", "x", long_ago.timestamp())])
    forget(home, NAME, ["nobody"], lambda _: None)
    table = deltalake.DeltaTable(home.table("requests", NAME)).to_pyarrow_table()
    assert "long ago" in table["_key"].to_pylist()


def test_labels_that_come_in_pieces_add_up_and_later_ones_count(
    home: Installation, tmp_path: Path
) -> None:
    file = tmp_path / "labels.csv"
    pieces = [
        ("id,t\n10,z\n11,z\n12,x\n", (3, 2)),
        ("id,t\n13,y\n", (4, 3)),
        ("id,t\n10,y\n", (4, 4)),
        ("id,t,date\n10,z,2026-11-21\n", (4, 3)),
    ]
    for text, expected in pieces:
        file.write_text(text)
        found = read_feedback(home, NAME, str(file), key=("id",))
        newest = found.days[-1]
        assert (newest.date, newest.labels) == ("2026-11-21", expected[0])
        assert newest.value == expected[1] / expected[0]
        assert (found.labels, found.matched) == (text.count("\n") - 1, text.count("\n") - 1)
    assert found.days[0].value == 1.0
    forget(home, NAME, ["11"], lambda _: None)
    assert "11" not in stored_labels(home, NAME)["_key"].to_pylist()
