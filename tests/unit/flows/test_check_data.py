"""`check` reads the first rows, `check --full` all of them; both say what they hold."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from millrace.flows import settings
from millrace.flows.cli import main
from millrace.models.common.errors import InputError, TransientError
from millrace.models.config.pipeline_file import load_pipeline
from millrace.models.data import sample_check
from millrace.models.data.ingest import ingest
from millrace.tasks import check_all

GOOD = "x,y\n" + "".join(f"{n},{n % 2}\n" for n in range(400))


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MILLRACE_HOME", str(tmp_path / "home"))
    made = tmp_path / "p.yaml"
    made.write_text("name: t\ndataset:\n  source: r.csv\n  target: y\n")
    return made


def check(file: Path, rows: str, *options: str) -> tuple[str, str]:
    (file.parent / "r.csv").write_text(rows)
    done = CliRunner().invoke(main.make_app(), ["check", str(file), *options])
    if done.exception is not None:
        raise done.exception
    assert not (file.parent / "home").exists()
    return done.stdout, done.output


def test_the_rows_and_the_run_are_described(file: Path) -> None:
    out, shown = check(file, GOOD)
    assert out.splitlines() == [
        "rows: all 400 rows of r.csv, all good",
        "numbers: x int 0 to 399",
        "key: none, so a row is known by a hash of its values; see dataset.key",
        "target: y, 2 classes: 0 50%, 1 50%",
        "split: about 320 to train, 40 to validate, 40 to test",
        "a run: trains mlp, exports onnx-fp32, onnx-optimized, onnx-int8-dynamic, "
        "onnx-int8-static, leaves the promotion to you",
    ]


def test_the_resolved_file_is_printed_beside_them(file: Path) -> None:
    out, shown = check(file, GOOD, "--resolved")
    assert yaml.safe_load(out)["name"] == "t"
    assert "target: y, 2 classes" in shown


def test_json_has_the_pipeline_and_the_data(file: Path) -> None:
    found = json.loads(check(file, GOOD + ",1\n", "--json")[0])
    assert found["pipeline"]["name"] == "t"
    data = found["data"]
    assert (data["rows"], data["bad"], data["is_whole"]) == (400, 1, True)
    assert data["reasons"] == {"x: null": 1}
    assert data["split"] == {"train": 320, "validation": 40, "test": 40}
    assert data["statistics"]["y"]["counts"] == [[0, 200], [1, 200]]


def test_bad_rows_of_the_sample_are_counted(file: Path) -> None:
    _, err = check(file, GOOD + ",1\n,0\n1,0,7\n")
    assert "rows: all 403 rows of r.csv, 3 of them bad: x: null (2); " in err


def test_a_sample_that_a_run_would_refuse_is_told_with_what_accepts_it(file: Path) -> None:
    assert "max_quarantine" not in check(file, GOOD + ",1\n" * 21)[1]
    _, err = check(file, GOOD + ",1\n" * 22)
    assert "above max_quarantine 5%: a run would refuse the data\n" in err
    assert "dataset.columns: {x: {nullable: true}} accepts nulls" in err


def test_rows_after_the_sample_are_read_by_full_only(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sample_check, "SAMPLE_ROWS", 100)
    assert "the first 100 rows of r.csv, all good" in check(file, GOOD + ",1\n")[1]
    _, err = check(file, GOOD + ",1\n", "--full")
    assert "rows: 401 of r.csv, 1 to quarantine: x: null (1); a run publishes them" in err
    assert "model: built, " in err
    assert re.search(r"^split: \d+ to train, \d+ to validate, \d+ to test$", err, re.MULTILINE)
    assert re.search(r"^memory: .*B.* on each of 2 workers$", err, re.MULTILINE)
    assert re.search(r"^time: .* of training steps, an answer in ", err, re.MULTILINE)


def test_full_says_what_a_run_would_do_after_an_earlier_one(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (file.parent / "r.csv").write_text(GOOD.replace("0,0\n", "0.5,0\n", 1))
    monkeypatch.setenv("MILLRACE_INGEST_MEMORY_GIB", "3")
    places = []
    pipeline, home = load_pipeline(file), settings.load().installation()
    ingest(pipeline, home.prepared())

    def ingest_noted(*given: Any, **more: Any) -> Any:
        places.append(given[1])
        return ingest(*given, **more)

    monkeypatch.setattr(check_all, "ingest", ingest_noted)

    def full(rows: str) -> str:
        (file.parent / "r.csv").write_text(rows)
        return CliRunner().invoke(main.make_app(), ["check", str(file), "--full"]).output

    assert "all good; a run does not publish them again" in full(
        GOOD.replace("0,0\n", "0.5,0\n", 1)
    )
    told = full(GOOD)
    assert "x int 0 to 399" not in told
    assert "a run publishes them" in told
    assert [each.ingest_memory for each in places] == [3 * 2**30] * 2
    assert places[0].home != home.home


def test_a_source_that_is_all_bad_is_refused(file: Path) -> None:
    file.write_text(file.read_text() + "  columns: {x: {type: float, min: 1000}}\n")
    with pytest.raises(InputError, match="all of the first 400 rows") as told:
        check(file, GOOD)
    assert told.value.seen == "x: below the minimum 1000 (400)"
    with pytest.raises(InputError, match="all of the 400 rows") as told:
        check(file, GOOD, "--full")
    assert "millrace-check" not in str(told.value)


def text_rows(columns: int, rows: int = 1100) -> str:
    names = [f"note{n}" for n in range(columns)]
    lines = [
        ",".join([str(n), *(f"{name} {n}" for name in names), str(n % 2)]) for n in range(rows)
    ]
    return "\n".join([",".join(["x", *names, "y"]), *lines]) + "\n"


@pytest.mark.parametrize("options", [(), ("--full",)])
def test_columns_with_too_many_values_are_all_named(file: Path, options: tuple[str, ...]) -> None:
    with pytest.raises(InputError) as told:
        check(file, text_rows(2), *options)
    assert told.value.what == "columns note0, note1 have more than 1000 different values"
    assert told.value.seen is not None
    assert "; note1: note1 0, note1 1, " in told.value.seen
    assert told.value.hint is not None
    assert "set dataset.key: [note0]" in told.value.hint
    assert "dataset.columns: {note0: {type: string}, note1: {type: string}}" in told.value.hint


def test_no_other_key_is_suggested_where_there_is_one(file: Path) -> None:
    file.write_text(file.read_text() + "  key: [x]\n")
    with pytest.raises(InputError, match="'note0' has more than 1000") as told:
        check(file, text_rows(1))
    assert told.value.hint is not None
    assert "dataset.key" not in told.value.hint


def test_a_thousand_values_pass(file: Path) -> None:
    assert "note0 (note0 0 1, " in check(file, text_rows(1, 1000))[1]


@pytest.mark.parametrize("options", [(), ("--full",)])
@pytest.mark.parametrize("last", ['3,"p\nq",a', '3,"pq",a'])
def test_line_breaks_in_cells_are_told(file: Path, options: tuple[str, ...], last: str) -> None:
    lines = "".join(f"{n},p,{'ab'[n % 2]}\n" for n in range(400))
    _, err = check(file, f"x,c,y\n{lines}{last}\n", *options)
    words = "warning: cells of the CSV files that contain line breaks: 1; "
    assert (words in err) == ("\n" in last)


def test_a_file_that_lacks_a_column_is_told_by_full(file: Path) -> None:
    text = file.read_text().replace("r.csv", "r*.csv")
    file.write_text(text + "  columns: {x: {nullable: true}}\n")
    (file.parent / "r2.csv").write_text("z,y\n1,0\n")
    _, err = check(file, GOOD, "--full")
    words = "warning: r2.csv has no column x; its rows have null there (it has z, which the table "
    assert words in err


@pytest.mark.parametrize("options", [(), ("--full",)])
@pytest.mark.parametrize("last", ["7,1", "400,1"])
def test_rows_with_the_key_of_an_earlier_row_are_told(
    file: Path, options: tuple[str, ...], last: str
) -> None:
    file.write_text(file.read_text() + "  key: [k]\n")
    rows = "".join(f"{n},{n},{n % 2}\n" for n in range(400))
    _, err = check(file, f"k,x,y\n{rows}{last[:-1]}5,{last[-1]}\n", *options)
    assert ("warning: rows with the key of an earlier row (k): 1; " in err) == (last == "7,1")


def test_a_model_that_cannot_be_built_is_refused_by_full(file: Path) -> None:
    file.write_text(file.read_text() + "model: {family: mlp, params: {hidden: [none]}}\n")
    check(file, GOOD)
    with pytest.raises(InputError, match="could not be built"):
        check(file, GOOD, "--full")


def test_a_store_that_does_not_answer_is_reported(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise TransientError("the store cannot be reached")

    monkeypatch.setattr("millrace.models.preflight._check_source", fail)
    assert "the source was not checked: the store cannot be reached" in check(file, GOOD)[1]
