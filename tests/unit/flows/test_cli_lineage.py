"""`millrace lineage` on the command line."""

import json

import deltalake
import pyarrow as pa
import pytest
from typer.testing import CliRunner

from millrace.flows.cli import main
from millrace.flows.cli.lineage import trace_rows
from millrace.flows.cli.show import show_lineage
from millrace.models.common.errors import InputError
from millrace.models.common.installation import Installation


def test_a_date_that_is_none_is_refused_as_such():
    words = ["lineage", "shop", "--row", "000004", "--date", "bad"]
    done = CliRunner().invoke(main.make_app(("lineage", "certify")), words)
    assert isinstance(done.exception, InputError)
    assert done.exception.what == "the date is not valid"


def test_an_online_answer_is_traced_with_the_row_that_was_asked(tmp_path, monkeypatch, capsys):
    home = Installation(
        tmp_path / "home", f"sqlite:///{tmp_path}/m.db", str(tmp_path / "tables")
    ).prepared()
    folder = home.home / "request_log" / "shop"
    folder.mkdir(parents=True)
    asked = {"time": 1.8e9, "version": 3, "request": "r1", "number": 2, "row": {"x": 1}}
    lines = [
        {**asked, "key": {"id": key}, "prediction": "yes", "score": 0.75} for key in ("a", "b")
    ]
    (folder / "1-1.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (found,) = trace_rows(home, "shop", "a")
    assert (found.origin, found.answer["row"]) == (None, '{"x": 1}')
    assert found.version["version"] == 3
    monkeypatch.setenv("COLUMNS", "160")
    show_lineage([found])
    shown = capsys.readouterr().out
    assert "row 2 of the request r1" in shown
    assert "prediction yes, score 0.75" in shown
    assert trace_rows(home, "shop", "a", "2027-01-15") == [found]
    for key, date in (("z", None), ("a", "2026-11-22")):
        with pytest.raises(InputError, match="there is no table of predictions"):
            trace_rows(home, "shop", key, date)


def test_a_dead_letter_is_told_with_its_reason(tmp_path):
    home = Installation(tmp_path, "", str(tmp_path / "tables"))
    dead = pa.table(
        {"_key": ["a", "b"], "reason": ["x is missing"] * 2, "date": ["2026-11-23"] * 2}
    )
    predictions = pa.table({"_key": ["c"], "_row": [0], "date": ["2026-11-23"]})
    for name, rows in (("dead_letters", dead), ("predictions", predictions)):
        deltalake.write_deltalake(home.table(name, "shop"), rows, partition_by=["date"])
    with pytest.raises(InputError, match="'a' was not scored: it is a dead letter") as told:
        trace_rows(home, "shop", "a")
    assert told.value.seen == "2026-11-23: x is missing"
    for key, date in (("z", None), ("a", "2026-11-22")):
        with pytest.raises(InputError, match="has the key"):
            trace_rows(home, "shop", key, date)
