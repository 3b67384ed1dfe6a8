"""An SQLite database without rows, made once for a machine and copied for each home.

MLflow and Prefect make an empty database by all their migrations, which takes seconds of a core. So
the first one is kept in the user's cache folder, and other homes begin with a copy. A server still
runs the migrations that a copy lacks.
"""

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path


def copy_or_make(file: Path, cached: Path, make: Callable[[], None]) -> None:
    """Copy the cached database to a file that does not exist; without one, make and cache it.

    A folder that cannot be written is no error here: who opens the database reports that, and
    without a cache the migrations run in each home.

    Args:
        file: the database of a home.
        cached: the file in the cache.
        make: a function that makes `file` by the migrations.
    """
    with suppress(OSError):
        if _is_whole(cached):
            _publish(cached, file)
            return
        cached.unlink(missing_ok=True)
    make()
    with suppress(OSError, sqlite3.Error):
        cached.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(dir=cached.parent) as folder:
            copy = Path(folder) / cached.name
            with closing(sqlite3.connect(file)) as source, closing(sqlite3.connect(copy)) as target:
                source.backup(target)
            _publish(copy, cached)


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


def _publish(source: Path, file: Path) -> None:
    """Copy a database, all of it at once, unless the file is there: a server may use it by now."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=file.parent) as folder:
        copy = Path(folder) / file.name
        shutil.copyfile(source, copy)
        with suppress(FileExistsError):
            os.link(copy, file)
