from pathlib import Path

import pyarrow as pa
import yaml

from millrace.models.common.installation import Installation
from millrace.models.common.user_code import load
from millrace.models.config.pipeline import Pipeline
from millrace.models.data import ingest

EXAMPLES = Path(__file__).parents[3] / "examples"


def table(function: str) -> pa.Table:
    read = load(f"stdlib_source:{function}", EXAMPLES)
    return pa.Table.from_batches(read())  # type: ignore[operator]


def test_modules_are_whole_and_in_order_and_no_tests() -> None:
    found = table("modules")
    paths = found["path"].to_pylist()
    assert paths == sorted(paths)
    assert len(paths) == len(set(paths)) > 300
    assert {"argparse.py", "json/decoder.py", "asyncio/base_events.py"} <= set(paths)
    folders = {part for path in paths for part in path.split("/")[:-1]}
    assert not folders & {"test", "tests", "idlelib", "site-packages", "encodings"}
    assert found["text"].null_count == 0
    assert table("modules").equals(found)


def test_docstrings_are_a_signature_and_what_it_does() -> None:
    found = table("docstrings")
    rows = {row["name"]: row for row in found.to_pylist()}
    assert len(rows) == len(found) > 3000
    (split,) = [row for row in rows.values() if "# shlex.py\ndef split(" in row["prompt"]]
    assert split["prompt"].endswith("):\n")
    assert split["completion"] == "Split the string *s* using shell-like syntax."
    assert all(row["completion"].strip() for row in rows.values())


def test_the_example_ingests_them_without_a_bad_row(tmp_path: Path) -> None:
    example = yaml.safe_load((EXAMPLES / "code_lm.yaml").read_text())
    values = {
        "name": "t",
        "dataset": example["dataset"],
        "model": {"family": example["model"]["family"]},
    }
    installation = Installation(tmp_path, "", str(tmp_path / "tables"))
    made = ingest.ingest(Pipeline.model_validate(values).with_folder(EXAMPLES), installation)
    assert made.quarantined == 0
    assert made.rows > 300
    assert made.schema.key == ("path",)
