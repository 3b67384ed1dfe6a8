"""MLflow's database of a new home."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from millrace.models.registry import mlflow_database
from millrace.models.registry.mlflow_database import SQLITE, prepare_database
from millrace.models.registry.registry_lookup import KNOWN_SCHEMAS
from millrace.models.registry.tracking import client


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "millrace"


@pytest.fixture(scope="module")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database that MLflow has made."""
    file = tmp_path_factory.mktemp("migrated") / "mlflow.db"
    mlflow_database._migrate(file)
    return file


@pytest.fixture
def migrations(migrated: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Replace the migrations, which take a second, by a copy; return the files that were made."""
    made: list[Path] = []

    def migrate(file: Path) -> None:
        shutil.copyfile(migrated, file)
        made.append(file)

    monkeypatch.setattr(mlflow_database, "_migrate", migrate)
    return made


def content(file: Path) -> list[str]:
    with closing(sqlite3.connect(file)) as database:
        return list(database.iterdump())


def test_the_migrations_run_for_the_first_home_only(
    tmp_path: Path, migrated: Path, migrations: list[Path], cache: Path
) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        prepare_database(f"{SQLITE}{tmp_path}/{name}/mlflow.db")
        assert content(tmp_path / name / "mlflow.db") == content(migrated)
        assert [each.name for each in (tmp_path / name).iterdir()] == ["mlflow.db"]
    assert len(migrations) == 1
    assert [each.suffix for each in cache.iterdir()] == [".db"]
    assert cache.stat().st_mode & 0o077 == 0


def test_mlflow_opens_a_copy_as_a_database_of_its_own(
    tmp_path: Path, migrations: list[Path]
) -> None:
    prepare_database(f"{SQLITE}{tmp_path}/first.db")
    assert len(migrations) == 1
    store = client(f"{SQLITE}{tmp_path}/mlflow.db")
    assert [each.name for each in store.search_experiments()] == ["Default"]
    assert store.create_experiment("mine", str(tmp_path)) == "1"
    with closing(sqlite3.connect(tmp_path / "mlflow.db")) as database:
        (found,) = database.execute("select version_num from alembic_version").fetchone()
    assert found in KNOWN_SCHEMAS
    assert len(migrations) == 1


@pytest.mark.parametrize("content", [b"", b"mine"])
def test_a_file_that_is_there_stays_as_it_is(
    tmp_path: Path, migrations: list[Path], content: bytes
) -> None:
    (tmp_path / "mlflow.db").write_bytes(content)
    prepare_database(f"{SQLITE}{tmp_path}/mlflow.db")
    assert (tmp_path / "mlflow.db").read_bytes() == content
    assert migrations == []


@pytest.mark.parametrize(
    "uri",
    [
        *("http://127.0.0.1:5000", "postgresql://me:secret@somewhere/mlflow", "sqlite://"),
        *("sqlite:///", "sqlite:///:memory:", "sqlite:////tmp/x.db?cache=shared"),
        *("sqlite:////nowhere/mlflow.db", "sqlite+pysqlite:////tmp/x.db", ""),
    ],
)
def test_another_address_is_left_to_mlflow(uri: str, migrations: list[Path]) -> None:
    prepare_database(uri)
    assert migrations == []


def test_an_error_is_left_to_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(file: Path) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(mlflow_database, "_migrate", fail)
    prepare_database(f"{SQLITE}{tmp_path}/mlflow.db")
    assert not (tmp_path / "mlflow.db").exists()
