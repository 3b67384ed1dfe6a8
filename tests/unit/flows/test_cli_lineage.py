"""`millrace lineage` on the command line."""

import deltalake
import pyarrow as pa
import pytest
from typer.testing import CliRunner

from millrace.flows.cli import main
from millrace.flows.cli.lineage import trace_rows
from millrace.models.common.errors import InputError
from millrace.models.common.installation import Installation


def test_a_date_that_is_none_is_refused_as_such():
    words = ["lineage", "shop", "--row", "000004", "--date", "bad"]
    done = CliRunner().invoke(main.make_app(("lineage", "certify")), words)
    assert isinstance(done.exception, InputError)
    assert done.exception.what == "the date is not valid"


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
