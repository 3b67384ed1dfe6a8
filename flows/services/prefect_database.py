"""Prefect's SQLite database of a new home: a copy of an empty one, made once on a machine.

Prefect makes an empty database by all its migrations since 2022, which takes 6 s of a core. So the
first one is kept in the user's cache folder, and other homes begin with a copy. It has tables and
indexes, and no rows except Alembic's revision. A server still runs the migrations that a copy
lacks.

`python -m millrace.flows.services.prefect_database` makes it, for the installation.
"""

import asyncio
import os
import tempfile
from pathlib import Path

from millrace.models.common.machine_cache import machine_cache
from millrace.models.common.template_database import copy_or_make

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
    copy_or_make(file, _cached_file(), _migrate)


def file_of(url: str) -> Path | None:
    """Return the file of a database; None if it is none, or one that the user has set up."""
    name = url.removeprefix(SQLITE)
    is_plain = url.startswith(SQLITE) and name.endswith("/prefect.db")
    return Path(name) if is_plain else None


def _cached_file() -> Path:
    import prefect

    return machine_cache() / f"prefect-{prefect.__version__}.db"


def _migrate() -> None:
    from prefect.server.database import provide_database_interface

    asyncio.run(provide_database_interface().create_db())


def main() -> None:
    """Make the cached database, in a folder that is deleted again."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["PREFECT_HOME"] = folder
        prepare_database()


if __name__ == "__main__":
    main()
