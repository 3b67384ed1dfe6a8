"""`millrace backup` and `restore`: write the Millrace home folder into one file, and restore it.

The file is a gzipped tar with `home.json` first. It holds what a home cannot recreate: MLflow's and
Prefect's databases, artifacts, tables, the model repository, keys and logins. `up` and jobs may run
during a backup. SQLite's own backup copies the databases, before the other files are listed, so
that the files that a database names are in the backup. The log of a Delta table is copied before
its data files, so that a restored table has the state of one of its commits. Data on a shared
service (`MLFLOW_TRACKING_URI`, `MILLRACE_TABLES`) is neither in the home nor in the file.

A home is restored at its original path only, because MLflow's database and the signatures of
versions contain that path.
"""

import gzip
import io
import json
import os
import sqlite3
import tarfile
import tempfile
import zlib
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from shutil import rmtree
from typing import Annotated, Any

import typer

from millrace.flows import console
from millrace.flows.cli.command_setup import AsJson, load_settings, report
from millrace.models.common.errors import InputError, WorkError, missing_file
from millrace.models.common.home_version import NEWEST, require_version
from millrace.tasks.progress import bar

MANIFEST = "home.json"
EXCLUDED = frozenset(
    {"backends", "cache", "logs", "receipts", "staging", "timing_caches", "training"}
)
"""Folders of a home that are not backed up, because they are recreated when needed."""
RUN_FILES = frozenset({"prefect.login", "ray.token", "triton.token"})
"""The files of the folder `run` that a backup holds."""
SQLITE_MAGIC = b"SQLite format 3\0"
JOURNAL_SUFFIXES = ("-wal", "-shm", "-journal")
"""Suffixes of SQLite's journals; the copy of the database includes the journals' content."""
MANIFEST_BYTES = 64 * 1024
MALFORMED = (ValueError, TypeError, OverflowError, RecursionError)
"""Errors from reading a file that is no JSON of the expected shape."""
CHUNK_BYTES = 1024 * 1024


def backup(
    file: Annotated[Path, typer.Argument(help="The file to write, such as home.tar.gz.")],
    as_json: AsJson = False,
) -> None:
    """Write the home folder (versions, tables, keys, history) to one file, even while `up` runs."""
    console.set_up_logging()
    made = back_up(load_settings().home, file)
    if as_json:
        console.print_json(made)
        return
    report(f"wrote {made.files:,} files, {made.size_bytes:,} bytes of {made.home}, to {made.file}")
    console.print_hint("keep the backup as private as the home; it contains the home's keys")


def restore(
    file: Annotated[Path, typer.Argument(help="A file that `millrace backup` wrote.")],
    as_json: AsJson = False,
) -> None:
    """Restore the home folder at its original path from a backup, completely or not at all."""
    console.set_up_logging()
    found = restore_home(load_settings().home, file)
    if as_json:
        console.print_json(found)
        return
    report(f"{found.home} is restored as of {found.made}")
    console.print_hint("`millrace up`, then `millrace release`: Triton serves the champions again")


@dataclass(frozen=True)
class Backup:
    """A backup that was written or read.

    Attributes:
        file: the backup file.
        home: the absolute path of the home folder.
        layout: the layout version of the home folder.
        made: the time of the backup, ISO 8601 in UTC.
        files: the number of files in the backup.
        size_bytes: the size of these files before compression.
    """

    file: Path
    home: Path
    layout: int
    made: str
    files: int
    size_bytes: int


def back_up(home: Path, file: Path) -> Backup:
    """Write a home folder into a new file that only this user may read.

    Raises:
        InputError: there is no home, or the file exists already or would be inside the home.
        WorkError: the file cannot be written.
    """
    if not home.is_dir():
        raise InputError(
            f"there is no Millrace home folder {home}",
            hint="set MILLRACE_HOME to an existing home folder",
        )
    home = home.resolve()
    require_version(home)
    if file.exists():
        raise InputError(f"{file} exists already", hint="name a new file, or remove this one")
    if file.resolve().is_relative_to(home):
        raise InputError(
            f"the backup {file} would be inside the home {home}", valid="a file outside that home"
        )
    staged = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        with tempfile.TemporaryDirectory() as folder:
            contents = _copy_databases(home, Path(folder))
            contents = {path: contents.get(path, path) for path in list_files(home)}
            size = sum(path.stat().st_size for path in contents.values() if path.exists())
            made = datetime.now(UTC).isoformat(timespec="seconds")
            backup = Backup(file, home, NEWEST, made, len(contents), size)
            descriptor = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with (
                os.fdopen(descriptor, "wb") as out,
                tarfile.open(fileobj=out, mode="w:gz", dereference=True) as archive,
            ):
                _write(archive, backup, contents)
        staged.rename(file)
    except OSError as error:
        raise WorkError(
            f"the backup {file} cannot be written",
            seen=error.strerror or error,
            hint="name a file on a disk that this user may write and that has room",
        ) from error
    finally:
        staged.unlink(missing_ok=True)
    return backup


def list_files(home: Path) -> list[Path]:
    """Return the files of a home to back up, logs of Delta tables before their data files.

    A part of the home may be a link to another disk. Links inside the parts are left out, because
    whoever may write artifacts could link to any file of this user.
    """
    parts = [part for part in home.iterdir() if part.name not in EXCLUDED]
    files = [part for part in parts if part.is_file()]
    for part in parts:
        for folder, _, names in os.walk(part):
            paths = (Path(folder, name) for name in names)
            files += [path for path in paths if path.is_file() and not path.is_symlink()]
    run = home / "run"
    kept = [path for path in files if path.parent != run or path.name in RUN_FILES]
    return sorted(
        (path for path in kept if not _is_journal(path)),
        key=lambda path: ("_delta_log" not in path.parts, path),
    )


def restore_home(home: Path, file: Path) -> Backup:
    """Restore a home folder at its original path from a backup, completely or not at all.

    Raises:
        InputError: the file is not a backup, is a backup of another home, or has a layout version
            that this code does not read; or the home exists already.
        WorkError: the home cannot be written.
    """
    home = home.resolve()
    try:
        with gzip.open(file) as stream, tarfile.open(fileobj=stream, mode="r:") as archive:
            backup = _read_manifest(archive, file)
            _require_free_path(backup, home)
            home.parent.mkdir(parents=True, exist_ok=True)
            staged = Path(tempfile.mkdtemp(prefix=f".{home.name}.", dir=home.parent))
            try:
                _extract(archive, backup, staged)
                while stream.read(CHUNK_BYTES):  # gzip checks the checksum at the end
                    pass
                require_version(staged)
                with suppress(FileNotFoundError):
                    home.rmdir()  # an empty folder may be there
                staged.rename(home)
            finally:
                rmtree(staged, ignore_errors=True)
    except (tarfile.TarError, zlib.error, gzip.BadGzipFile, EOFError, *MALFORMED) as error:
        raise InputError(
            f"{file} is not a complete backup of a Millrace home folder",
            seen=error,
            valid="a file that `millrace backup` wrote",
        ) from error
    except FileNotFoundError as error:
        raise missing_file(file, "the backup") from error
    except OSError as error:
        raise WorkError(
            f"{file} cannot be restored to {home}", seen=error.strerror or error
        ) from error
    return backup


def _copy_databases(home: Path, folder: Path) -> dict[Path, Path]:
    """Copy a home's SQLite databases into `folder`; return the copies by the databases' paths."""
    copies: dict[Path, Path] = {}
    for path in list_files(home):
        with suppress(FileNotFoundError):  # the file was removed meanwhile
            if _is_database(path):
                copies[path] = folder / str(len(copies))
                _copy_database(path, copies[path])
    return copies


def _write(archive: tarfile.TarFile, backup: Backup, contents: Mapping[Path, Path]) -> None:
    """Write the files of a home; for a database, the contents of its copy are written."""
    manifest = json.dumps({**asdict(backup), "file": "", "home": str(backup.home)}).encode()
    info = tarfile.TarInfo(MANIFEST)
    info.size, info.mode = len(manifest), 0o600
    archive.addfile(info, io.BytesIO(manifest))
    with bar("backup", len(contents), "files") as progress:
        for number, (path, copy) in enumerate(contents.items(), 1):
            with suppress(FileNotFoundError):  # the file was removed meanwhile
                archive.add(copy, str(path.relative_to(backup.home)), recursive=False)
            progress.update(number)


def _copy_database(path: Path, copy: Path) -> None:
    """Copy a database that other processes may write; only this user may read the copy."""
    with (
        closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=60)) as source,
        closing(sqlite3.connect(copy)) as target,
    ):
        source.backup(target)
    copy.chmod(0o600)


def _is_database(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(SQLITE_MAGIC)) == SQLITE_MAGIC


def _is_journal(path: Path) -> bool:
    return any(
        path.name.endswith(suffix) and path.with_name(path.name.removesuffix(suffix)).exists()
        for suffix in JOURNAL_SUFFIXES
    )


def _read_manifest(archive: tarfile.TarFile, file: Path) -> Backup:
    info = archive.next()
    if info is None or info.name != MANIFEST or not info.isfile() or info.size > MANIFEST_BYTES:
        raise ValueError(f"the archive does not begin with {MANIFEST}")
    stream = archive.extractfile(info)
    values: Any = json.loads(stream.read() if stream else b"")
    if not isinstance(values, dict) or not {"home", "layout", "made"} <= set(values):
        raise ValueError(f"its {MANIFEST} lacks home, layout or made")
    if (layout := int(values["layout"])) > NEWEST:
        raise InputError(
            f"{file} was made by a newer Millrace, whose layout this version cannot read",
            seen=f"layout version {layout}",
            valid=f"at most layout version {NEWEST}",
            hint="restore the backup with the newer Millrace",
        )
    return Backup(
        file,
        Path(str(values["home"])),
        layout,
        str(values["made"]),
        int(values.get("files", 0)),
        int(values.get("size_bytes", 0)),
    )


def _require_free_path(backup: Backup, home: Path) -> None:
    if backup.home != home:
        raise InputError(
            f"{backup.file} is a backup of another Millrace home folder",
            seen=home,
            valid=backup.home,
            hint=f"set MILLRACE_HOME={backup.home}, because the databases and signatures in the "
            "backup contain that path",
        )
    if home.exists() and (not home.is_dir() or any(home.iterdir())):
        raise InputError(
            f"the Millrace home folder {home} exists already",
            valid="no folder at that path, or an empty one",
            hint="stop its services with `millrace down`, and move the folder away",
        )


def _extract(archive: tarfile.TarFile, backup: Backup, staged: Path) -> None:
    with bar("restore", backup.files, "files") as progress:
        for number, member in enumerate(archive):
            if member.name == MANIFEST:
                continue
            if not member.isfile() or PurePosixPath(member.name).is_absolute():
                raise ValueError(f"the archive contains {member.name!r}, not a file of a home")
            archive.extract(member, staged, filter="data")
            (staged / member.name).chmod(member.mode & 0o700)
            progress.update(number)
