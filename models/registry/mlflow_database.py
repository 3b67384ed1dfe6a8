"""MLflow's database of a new home: a copy of one that was migrated once on this machine.

MLflow makes an empty database by all its migrations since 2018, which takes a second of a core and
waits for the disk. The copy has tables and indexes, and no rows except Alembic's revision and
MLflow's default workspace.

`python -m millrace.models.registry.mlflow_database` makes it, for the installation.
"""

import os
import tempfile
from contextlib import suppress
from functools import partial
from pathlib import Path

from millrace.models.common.machine_cache import machine_cache
from millrace.models.common.template_database import copy_or_make

SQLITE = "sqlite:///"


def prepare_database(tracking_uri: str) -> None:
    """Make MLflow's database if it is an SQLite file that does not exist.

    An error is left to MLflow, which then makes the database itself and reports the error.

    Args:
        tracking_uri: address of MLflow.
    """
    file = file_of(tracking_uri)
    if file is None or file.exists() or not file.parent.is_dir():
        return
    import mlflow
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    cached = machine_cache() / f"mlflow-{mlflow.__version__}.db"
    with suppress(OSError, SQLAlchemyError, MlflowException):
        copy_or_make(file, cached, partial(_make, file))


def file_of(tracking_uri: str) -> Path | None:
    """Return the file of an SQLite database; None if it is another address or has options."""
    name = tracking_uri.removeprefix(SQLITE)
    is_file = tracking_uri.startswith(SQLITE) and name and not {"?", "%"} & set(name)
    return Path(name) if is_file and name != ":memory:" else None


def _make(file: Path) -> None:
    """Migrate a database beside the file, which is whole from its first moment."""
    with tempfile.TemporaryDirectory(dir=file.parent) as folder:
        made = Path(folder) / file.name
        _migrate(made)
        with suppress(FileExistsError):
            os.link(made, file)


def _migrate(file: Path) -> None:
    from mlflow.store.db import utils

    engine = utils.create_sqlalchemy_engine_with_retry(f"{SQLITE}{file}")  # type: ignore[no-untyped-call]
    try:
        utils._initialize_tables(engine)  # type: ignore[no-untyped-call]
    finally:
        engine.dispose()


def main() -> None:
    """Make the cached database, in a folder that is deleted again."""
    with tempfile.TemporaryDirectory() as folder:
        prepare_database(f"{SQLITE}{folder}/mlflow.db")


if __name__ == "__main__":
    main()
