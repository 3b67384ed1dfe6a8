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

SQLITE = "sqlite+aiosqlite:///"
UNCHANGED = "PREFECT_SERVER_DATABASE_CONNECTION_URL", "PREFECT_API_DATABASE_CONNECTION_URL"
"""With one of these variables the user has chosen a database."""


def prepare_database() -> None:
    """Make the database of this process's Prefect server, if it has none yet.

    A folder that cannot be written is no error here: the server itself reports that of its
    database, and without a cache the migrations run in each home.
    """
    from prefect.settings import get_current_settings

    if any(name in os.environ for name in UNCHANGED):
        return
    url = get_current_settings().server.database.connection_url
    file = Path(url.get_secret_value().removeprefix(SQLITE)) if url else None
    if file is None or file.exists():
        return
    cached = _cached_file()
    with suppress(OSError):
        if cached.is_file():
            _publish(cached, file)
            return
    _migrate()
    with suppress(OSError, sqlite3.Error):
        cached.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(dir=cached.parent) as folder:
            copy = Path(folder) / cached.name
            with closing(sqlite3.connect(file)) as source, closing(sqlite3.connect(copy)) as target:
                source.backup(target)
            _publish(copy, cached)


def _cached_file() -> Path:
    import prefect

    folder = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(folder) / "millrace" / f"prefect-{prefect.__version__}.db"


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
