"""Prefect's database of a new home."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from prefect.settings import PREFECT_SERVER_DATABASE_CONNECTION_URL, temporary_settings

from millrace.flows.services import prefect_database


@pytest.fixture
def migrations(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Replace the migrations, which take seconds, by a table; return the files that were made."""
    made: list[Path] = []

    def migrate() -> None:
        from prefect.settings import get_current_settings

        url = get_current_settings().server.database.connection_url
        assert url is not None
        file = Path(url.get_secret_value().removeprefix(prefect_database.SQLITE))
        with closing(sqlite3.connect(file)) as database:
            database.execute("create table alembic_version as select 'head' as version_num")
        made.append(file)

    monkeypatch.setattr(prefect_database, "_migrate", migrate)
    return made


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "millrace"


def prepare(file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    url = f"{prefect_database.SQLITE}{file}"
    with temporary_settings({PREFECT_SERVER_DATABASE_CONNECTION_URL: url}):
        prefect_database.prepare_database()


def tables(file: Path) -> list[str]:
    with closing(sqlite3.connect(file)) as database:
        return [name for (name,) in database.execute("select name from sqlite_master")]


def test_the_migrations_run_for_the_first_home_only(
    tmp_path: Path, migrations: list[Path], cache: Path
) -> None:
    first, second = tmp_path / "first" / "prefect.db", tmp_path / "second" / "prefect.db"
    prepare(first)
    prepare(second)
    assert migrations == [first]
    assert tables(first) == tables(second) == ["alembic_version"]
    assert [each.suffix for each in cache.iterdir()] == [".db"]
    assert cache.stat().st_mode & 0o077 == 0


def test_a_database_that_is_there_stays_as_it_is(tmp_path: Path, migrations: list[Path]) -> None:
    prepare(tmp_path / "other" / "prefect.db")
    file = tmp_path / "home" / "prefect.db"
    file.parent.mkdir()
    file.write_bytes(b"mine")
    prepare(file)
    assert file.read_bytes() == b"mine"


def test_a_cache_that_cannot_be_written_is_no_error(
    tmp_path: Path, migrations: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    for name in ("first", "second"):
        prepare(tmp_path / name / "prefect.db")
    assert len(migrations) == 2


@pytest.mark.parametrize("content", [b"", b"x" * 5000, "truncated"])
def test_a_cached_file_that_is_no_whole_database_is_made_again(
    tmp_path: Path, migrations: list[Path], cache: Path, content: bytes | str
) -> None:
    prepare(tmp_path / "first" / "prefect.db")
    (cached,) = cache.iterdir()
    whole = cached.read_bytes()
    cached.write_bytes(whole[:5000] if isinstance(content, str) else content)
    prepare(tmp_path / "second" / "prefect.db")
    assert len(migrations) == 2
    assert tables(tmp_path / "second" / "prefect.db") == tables(cached) == ["alembic_version"]


@pytest.mark.parametrize(
    "url",
    [
        *("postgresql+asyncpg://me:secret@somewhere/prefect", "sqlite+aiosqlite:///:memory:"),
        *("sqlite+aiosqlite:////tmp/x.db?cache=shared", "sqlite+aiosqlite:////tmp/mine.db"),
    ],
)
def test_a_database_that_the_user_set_up_is_left_to_prefect(url: str) -> None:
    assert prefect_database.file_of(url) is None
