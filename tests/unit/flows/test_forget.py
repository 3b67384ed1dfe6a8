"""`forget` reads keys as they are, and says which of them have no row."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from millrace.flows.cli import main
from millrace.models.common.errors import InputError
from millrace.models.common.installation import Installation
from millrace.models.config.pipeline_file import load_pipeline
from millrace.models.data.ingest import ingest

Rows = Callable[[str], Path]


@pytest.fixture
def ingested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rows:
    """Return what ingests rows, of which those without x are bad, and returns the pipeline file."""
    home = tmp_path / "home"
    monkeypatch.setenv("MILLRACE_HOME", str(home))
    file = tmp_path / "p.yaml"
    dataset = {"source": "r.csv", "target": "y", "key": ["id"], "max_quarantine": 0.6}
    dataset["columns"] = {"id": {"type": "string"}, "x": {"type": "float"}}
    file.write_text(yaml.safe_dump({"name": "t", "dataset": dataset}))

    def write(rows: str) -> Path:
        (tmp_path / "r.csv").write_text(f"id,x,y\n{rows}")
        ingest(load_pipeline(file), Installation(home, "", str(home / "tables")).prepared())
        return file

    return write


GOOD = "".join(f"{key},{n},{n % 2}\n" for n, key in enumerate(["a", "b", "c\u2028c", "d", "e"]))


def forget(*options: str) -> tuple[str, str]:
    done = CliRunner().invoke(main.make_app(), ["forget", "t", *options])
    if done.exception is not None:
        raise done.exception
    return done.stdout, done.stderr


def as_json(*options: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(forget(*options, "--json")[0])
    return found


def test_the_lines_of_a_file_are_keys_as_they_are(ingested: Rows, tmp_path: Path) -> None:
    ingested(GOOD)
    keys = tmp_path / "keys.txt"
    keys.write_bytes(b"\xef\xbb\xbfa\r\n\r\n" + "c\u2028c\nunknown\n".encode())
    found = as_json("--keys-from", str(keys))
    assert (found["keys"], found["missing"], found["failed"]) == (3, ["unknown"], [])
    assert [each["rows"] for each in found["tables"]] == [2, 0, 0, 0]
    assert [each["files"] for each in found["tables"]] == [1, 0, 0, 0]


def test_a_key_without_a_row_is_named(ingested: Rows) -> None:
    ingested(GOOD)
    _, err = forget("--key", "a", "--key", "A", "--dry-run")
    assert "keys without a row: A" in err


def test_an_unset_variable_is_refused(ingested: Rows) -> None:
    ingested(GOOD)
    with pytest.raises(InputError, match="a key is empty"):
        forget("--key", "")


def test_a_file_that_is_no_text_is_refused_with_a_next_step(ingested: Rows, tmp_path: Path) -> None:
    ingested(GOOD)
    keys = tmp_path / "keys.txt"
    keys.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="cannot be read") as raised:
        forget("--keys-from", str(keys))
    assert "CSV UTF-8" in str(raised.value)


def test_a_forgotten_key_may_be_allowed_again(ingested: Rows) -> None:
    ingested(GOOD)
    _, err = forget("--key", "a")
    assert "later runs leave them out, until --allow-again" in err
    found = as_json("--key", "a", "--key", "b", "--allow-again")
    assert found == {"dry_run": False, "allowed": 1, "missing": ["b"]}
    _, err = forget("--key", "a", "--allow-again")
    assert "keys that were not forgotten: a" in err


def test_a_dry_run_allows_no_key_again(ingested: Rows) -> None:
    ingested(GOOD)
    forget("--key", "a")
    for _ in range(2):
        _, err = forget("--key", "a", "--allow-again", "--dry-run")
        assert "keys that later runs would read again: 1\nnothing was changed" in err


def test_what_is_said_of_keys_without_a_row_is_true(ingested: Rows) -> None:
    ingested(GOOD)
    forget("--key", "a")
    _, err = forget("--key", "a", "--key", "b ")
    assert "keys that were forgotten before: a\nkeys without a row: 'b '\n" in err
    assert err.endswith("nothing was erased; check the keys\n")


def test_a_key_of_several_columns_is_described(ingested: Rows) -> None:
    file = ingested(GOOD)
    _, err = forget("--key", "S0", "--dry-run")
    assert "a key of this dataset" not in err
    values = yaml.safe_load(file.read_text())
    values["dataset"] |= {"key": ["id", "x"], "features": ["x"]}
    file.write_text(yaml.safe_dump(values))
    ingested(GOOD)
    _, err = forget("--key", "S0", "--dry-run")
    assert "keys without a row: S0\na key of this dataset is id|x, such as a|0\n" in err
    _, err = forget("--key", "a|0", "--dry-run")
    assert "a key of this dataset" not in err


@pytest.mark.parametrize("model", ["", ".", "t/", "../t"])
def test_what_is_no_model_is_refused(ingested: Rows, model: str) -> None:
    ingested(GOOD)
    for option in ([], ["--allow-again"], ["--dry-run"]):
        done = CliRunner().invoke(main.make_app(), ["forget", model, "--key", "a", *option])
        assert isinstance(done.exception, InputError)
        assert done.exception.valid == "t"
    assert as_json("--key", "a")["tables"][0]["rows"] == 1


def test_a_key_that_is_no_text_is_refused(ingested: Rows) -> None:
    ingested(GOOD)
    with pytest.raises(InputError, match="no text"):
        forget("--key", "\udcff")


@pytest.mark.parametrize("by_file", [True, False])
def test_a_quarantine_alone_is_searched_by_the_columns_that_are_declared(
    ingested: Rows, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, by_file: bool
) -> None:
    with pytest.raises(InputError, match="are bad"):
        ingested("a,,0\nb,,1\nc,1,0\n")
    if by_file:
        monkeypatch.setenv("MILLRACE_PIPELINES", str(tmp_path / "*.yaml"))
    else:
        with pytest.raises(InputError, match="columns that make the key"):
            forget("--key", "a")
    found = as_json("--key", "a", *([] if by_file else ["--key-column", "id"]))
    assert {each["table"]: each["rows"] for each in found["tables"]}["quarantine"] == 1
