"""Errors of a disk, a database or a service are told as that, wherever in a chain they are."""

import errno
import shutil
import sqlite3
from pathlib import Path
from types import SimpleNamespace

import pytest
import sqlalchemy
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError
from mlflow.exceptions import MlflowException
from ray.exceptions import NodeDiedError

from millrace.models.common.errors import InputError, MillraceError
from millrace.models.common.external_errors import explain_external_error, is_disk_error


def raised_from(outer: Exception, cause: Exception) -> Exception:
    outer.__cause__ = cause
    return outer


@pytest.mark.parametrize(
    ("error", "what"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "the disk is full"),
        (OSError(errno.EROFS, "Read-only file system"), "the file system is read-only"),
        (OSError(errno.EMFILE, "Too many open files"), "too many files are open"),
        (sqlite3.OperationalError("database or disk is full"), "the disk is full"),
        (sqlite3.OperationalError("attempt to write a readonly database"), "read-only"),
        (sqlite3.DatabaseError("database disk image is malformed"), "a database is corrupt"),
        (sqlite3.DatabaseError("file is not a database"), "a database is corrupt"),
        (RuntimeError("Generic LocalFileSystem error (os error 28)"), "the disk is full"),
        (
            raised_from(RuntimeError("flow failed"), OSError(errno.ENOSPC, "no space")),
            "the disk is full",
        ),
        (MlflowException("(sqlite3.OperationalError) disk I/O error"), "the disk cannot be read"),
        (MlflowException("API request failed with 500"), "MLflow failed"),
        (ExceptionGroup("two", [ValueError("x"), OSError(errno.EIO, "io")]), "the disk cannot"),
        (sqlalchemy.exc.TimeoutError("QueuePool limit"), "the database failed"),
        (NodeDiedError("the node died\n(1) an advice"), "Ray failed"),
    ],
)
def test_what_the_system_did_is_told_as_that(error: Exception, what: str) -> None:
    told = explain_external_error(error)
    assert told is not None
    assert what in told.what
    assert told.exit_code == 1
    assert told.seen
    assert "\n" not in told.seen
    assert told.hint


@pytest.mark.parametrize("left", [0, 5, 0.3, 0.9, -4])
def test_a_parquet_file_that_was_cut_is_told_as_that(tmp_path: Path, left: float) -> None:
    import pyarrow as pa
    import pyarrow.dataset as ds
    import pyarrow.parquet as pq

    file = tmp_path / "a.parquet"
    pq.write_table(pa.table({"a": list(range(1000))}), file)
    whole = file.read_bytes()
    file.write_bytes(whole[: int(left * len(whole)) if 0 < left < 1 else int(left)])
    with pytest.raises((pa.ArrowInvalid, OSError)) as raised:
        ds.dataset(file).to_table()
    told = explain_external_error(raised.value)
    assert told is not None
    assert told.what == "a Parquet file is damaged"


def test_a_damaged_table_is_told_as_that(tmp_path: Path) -> None:
    import pyarrow as pa

    write_deltalake(str(tmp_path), pa.table({"a": [1]}))
    next((tmp_path / "_delta_log").glob("*.json")).write_text("{")
    with pytest.raises(DeltaError) as raised:
        DeltaTable(str(tmp_path))
    told = explain_external_error(raised.value)
    assert told is not None
    assert "Delta table" in told.what


def test_an_error_of_ours_stays_what_it_is() -> None:
    ours = InputError("the date is not valid")
    assert explain_external_error(raised_from(RuntimeError("flow"), ours)) is ours


def test_a_fault_of_ours_is_none_of_the_system() -> None:
    assert explain_external_error(KeyError("x")) is None
    assert explain_external_error(FileNotFoundError(errno.ENOENT, "no such file")) is None


def test_a_full_disk_says_nothing_of_a_version() -> None:
    full = raised_from(MillraceError("the files cannot be fetched"), OSError(errno.ENOSPC, "full"))
    assert is_disk_error(full)
    assert not is_disk_error(raised_from(MillraceError("it differs"), OSError(errno.ENOENT, "")))
    assert not is_disk_error(MillraceError("No space left on device"))


def test_a_server_that_fails_on_a_full_disk_is_told_as_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = MlflowException("API request failed with 500")
    monkeypatch.setenv("MILLRACE_HOME", str(tmp_path))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=4096))
    told = explain_external_error(error)
    assert told is not None
    assert told.what == "the disk is full"
    monkeypatch.undo()
    told = explain_external_error(error)
    assert told is not None
    assert told.what == "MLflow failed"
