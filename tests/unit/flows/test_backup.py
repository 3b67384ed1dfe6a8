import io
import json
import shutil
import sqlite3
import tarfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest

from millrace.flows.cli import backup
from millrace.flows.cli.backup import MANIFEST, back_up, list_files, restore_home
from millrace.models.common.errors import InputError, WorkError
from millrace.models.common.home_version import FILE, NEWEST
from millrace.models.common.installation import Installation


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with a database that is being written, a table of two commits, keys and leftovers."""
    home = Installation(tmp_path / "home", "", "").prepared().home
    for number in range(2):
        rows = pa.table({"n": [number]})
        deltalake.write_deltalake(home / "tables" / "t", rows, mode="append")
    (home / "signing.key").write_text("secret")
    (home / "signing.key").chmod(0o600)
    (home / "run" / "triton.token").write_text("token")
    (home / "run" / "up.json").write_text("what runs")
    (home / "logs" / "mlflow.log").write_text("long")
    (home / "cache").mkdir()
    (home / "cache" / "copy").write_text("again")
    return home


@pytest.fixture
def database(home: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(home / "mlflow.db")) as connection:
        connection.execute("pragma journal_mode=wal")
        connection.execute("create table versions (n)")
        connection.execute("insert into versions values (1)")
        connection.commit()
        yield connection


def names_in(folder: Path) -> set[str]:
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}


def test_a_home_comes_back_as_it_was(
    home: Path, database: sqlite3.Connection, tmp_path: Path
) -> None:
    database.execute("insert into versions values (2)")  # not committed: of no backup
    made = back_up(home, tmp_path / "b.tar.gz")
    database.rollback()
    kept = {"mlflow.db", "signing.key", "run/triton.token", FILE}
    shutil.rmtree(home)
    assert restore_home(home, made.file).made == made.made
    names = names_in(home)
    assert {name for name in names if not name.startswith("tables/")} == kept
    assert made.files == len(names)
    with closing(sqlite3.connect(home / "mlflow.db")) as connection:
        assert connection.execute("select n from versions").fetchall() == [(1,)]
    assert sorted(deltalake.DeltaTable(home / "tables" / "t").to_pyarrow_table()["n"].to_pylist())
    assert (home / "signing.key").stat().st_mode & 0o777 == 0o600
    assert home.stat().st_mode & 0o777 == 0o700


def test_a_backup_is_private_and_holds_logs_of_tables_before_their_data(
    home: Path, tmp_path: Path
) -> None:
    made = back_up(home, tmp_path / "b.tar.gz")
    assert made.file.stat().st_mode & 0o777 == 0o600
    logs = ["_delta_log" in path.parts for path in list_files(home)]
    assert logs == sorted(logs, reverse=True)
    assert any(logs)


def test_files_that_a_database_names_are_in_the_backup(
    home: Path, database: sqlite3.Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model is registered during a backup, as late as its database can have it."""
    copy = backup._copy_database

    def copy_after_a_registration(path: Path, target: Path) -> None:
        (home / "artifacts" / "model.onnx").write_text("a model")
        copy(path, target)

    monkeypatch.setattr(backup, "_copy_database", copy_after_a_registration)
    made = back_up(home, tmp_path / "b.tar.gz")
    with tarfile.open(made.file) as archive:
        assert "artifacts/model.onnx" in archive.getnames()


def test_parts_on_another_disk_and_a_home_behind_a_link_are_backed_up(
    home: Path, tmp_path: Path
) -> None:
    (home / "artifacts").rename(tmp_path / "disk")
    (home / "artifacts").symlink_to(tmp_path / "disk")
    (tmp_path / "disk" / "model.onnx").write_text("a model")
    (home / "tables" / "hard").hardlink_to(tmp_path / "disk" / "model.onnx")
    (home / "tables" / "link").symlink_to("/etc/hostname")
    (tmp_path / "named").symlink_to(home)
    made = back_up(tmp_path / "named", tmp_path / "b.tar.gz")
    shutil.rmtree(home)
    restore_home(tmp_path / "named", made.file)
    assert (home / "artifacts" / "model.onnx").read_text() == "a model"
    assert (home / "tables" / "hard").read_text() == "a model"
    assert not (home / "tables" / "link").exists()
    assert made.files == len(names_in(home))


def test_what_is_there_is_not_overwritten(home: Path, tmp_path: Path) -> None:
    file = tmp_path / "b.tar.gz"
    back_up(home, file)
    before = file.read_bytes()
    with pytest.raises(InputError, match="exists already"):
        back_up(home, file)
    with pytest.raises(InputError, match="exists already"):
        restore_home(home, file)
    assert file.read_bytes() == before
    assert (home / "signing.key").read_text() == "secret"


def test_a_backup_inside_its_home_or_of_no_home_is_refused(home: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="would be inside the home"):
        back_up(home, home / "b.tar.gz")
    with pytest.raises(InputError, match="there is no Millrace home folder"):
        back_up(tmp_path / "none", tmp_path / "b.tar.gz")
    with pytest.raises(WorkError, match="cannot be written"):
        back_up(home, tmp_path / "no" / "folder" / "b.tar.gz")


def test_a_home_goes_back_only_to_where_it_was(home: Path, tmp_path: Path) -> None:
    made = back_up(home, tmp_path / "b.tar.gz")
    with pytest.raises(InputError, match="is a backup of another Millrace home folder") as caught:
        restore_home(tmp_path / "other", made.file)
    assert f"MILLRACE_HOME={home}" in str(caught.value)
    assert not (tmp_path / "other").exists()


def cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


def changed(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes(64) + data[middle + 64 :]


@pytest.mark.parametrize("spoil", [cut, changed, lambda data: b"", lambda data: b"rows\n" * 99])
def test_a_file_that_is_no_whole_backup_leaves_nothing(
    home: Path, tmp_path: Path, spoil: Callable[[bytes], bytes]
) -> None:
    file = back_up(home, tmp_path / "b.tar.gz").file
    file.write_bytes(spoil(file.read_bytes()))
    shutil.rmtree(home)
    with pytest.raises(InputError, match="is not a complete backup"):
        restore_home(home, file)
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the backup does not exist"):
        restore_home(tmp_path / "home", tmp_path / "b.tar.gz")


def archive_of(file: Path, home: Path, manifest: str = "", **files: str) -> Path:
    """Write a backup by hand; its layout is what `home.version` says."""
    usual = json.dumps({"home": str(home), "layout": NEWEST, "made": "now"})
    with tarfile.open(file, "w:gz") as archive:
        for name, text in {MANIFEST: manifest or usual, **files}.items():
            info = tarfile.TarInfo(name)
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text.encode()))
    return file


@pytest.mark.parametrize("name", ["../outside", "/tmp/outside", "a/../../outside"])
def test_a_backup_writes_nothing_outside_its_home(tmp_path: Path, name: str) -> None:
    file = archive_of(tmp_path / "b.tar.gz", tmp_path / "deep" / "home", **{name: "x"})
    with pytest.raises(InputError, match="is not a complete backup"):
        restore_home(tmp_path / "deep" / "home", file)
    assert not list(tmp_path.rglob("outside"))
    assert not (tmp_path / "deep" / "home").exists()


@pytest.mark.parametrize(
    ("manifest", "said"),
    [
        ('{"home": "/h", "made": "", "layout": null}', "is not a complete backup"),
        ('{"home": "/h", "made": "", "layout": 1, "files": null}', "is not a complete backup"),
        ('{"home": "/h", "made": "", "layout": 1e400}', "is not a complete backup"),
        ("[" * 30_000, "is not a complete backup"),
        ('{"home": "/h", "made": "", "layout": 99}', "was made by a newer Millrace"),
    ],
    ids=["no layout", "no files", "infinite", "deep", "newer"],
)
def test_what_a_manifest_may_not_say_is_refused(tmp_path: Path, manifest: str, said: str) -> None:
    file = archive_of(tmp_path / "b.tar.gz", tmp_path / "home", manifest)
    with pytest.raises(InputError, match=said):
        restore_home(tmp_path / "home", file)
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


def test_a_backup_of_a_newer_layout_is_refused(tmp_path: Path) -> None:
    home = tmp_path / "home"
    file = archive_of(tmp_path / "b.tar.gz", home, **{FILE: f"{NEWEST + 1}\n"})
    with pytest.raises(InputError, match="a newer Millrace"):
        restore_home(home, file)
    assert not home.exists()
