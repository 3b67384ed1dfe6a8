"""Prefect's SQLite database of a new home: a copy of an empty one, made once on a machine.

Prefect makes an empty database by all its migrations since 2022, which takes 6 s of a core. So the
first one is kept in the user's cache folder, and other homes begin with a copy. It has tables and
indexes, and no rows except Alembic's revision. A server still runs the migrations that a copy
lacks.

`python -m millrace.flows.services.prefect_database` makes it, for the installation.
"""

import asyncio
import os
import shutil
import sqlite3
import tempfile
from contextlib import closing, suppress
from pathlib import Path

from millrace.models.common.machine_cache import machine_cache

SQLITE = "sqlite+aiosqlite:///"


def prepare_database() -> None:
    """Make the database of this process's Prefect server, if it has none yet.

    A folder that cannot be written is no error here: the server itself reports that of its
    database, and without a cache the migrations run in each home.
    """
    from prefect.settings import get_current_settings

    url = get_current_settings().server.database.connection_url
    file = file_of(url.get_secret_value()) if url else None
    if file is None or file.exists():
        return
    cached = _cached_file()
    with suppress(OSError):
        if _is_whole(cached):
            _publish(cached, file)
            return
        cached.unlink(missing_ok=True)
    _migrate()
    with suppress(OSError, sqlite3.Error):
        cached.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(dir=cached.parent) as folder:
            copy = Path(folder) / cached.name
            with closing(sqlite3.connect(file)) as source, closing(sqlite3.connect(copy)) as target:
                source.backup(target)
            _publish(copy, cached)


def file_of(url: str) -> Path | None:
    """Return the file of a database; None if it is none, or one that the user has set up."""
    name = url.removeprefix(SQLITE)
    is_plain = url.startswith(SQLITE) and name.endswith("/prefect.db")
    return Path(name) if is_plain else None


def _is_whole(cached: Path) -> bool:
    """Return whether a cached database can be copied."""
    if not cached.is_file():
        return False
    try:
        with closing(sqlite3.connect(f"{cached.as_uri()}?mode=ro", uri=True)) as database:
            (found,) = database.execute("pragma quick_check").fetchone()
            return found == "ok" and bool(
                database.execute("select * from alembic_version").fetchall()
            )
    except sqlite3.Error:
        return False


def _cached_file() -> Path:
    import prefect

    return machine_cache() / f"prefect-{prefect.__version__}.db"


def _migrate() -> None:
    from prefect.server.database import provide_database_interface

    asyncio.run(provide_database_interface().create_db())


def _publish(source: Path, file: Path) -> None:
    """Copy a database, all of it at once, unless the file is there: a server may use it by now."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=file.parent) as folder:
        copy = Path(folder) / file.name
        shutil.copyfile(source, copy)
        with suppress(FileExistsError):
            os.link(copy, file)


def main() -> None:
    """Make the cached database, in a folder that is deleted again."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["PREFECT_HOME"] = folder
        prepare_database()


if __name__ == "__main__":
    main()
