"""`millrace backup` and `restore`: a home as one file, and back.

The file is a gzipped tar with `home.json` first, and holds what a home cannot make again: MLflow's
and Prefect's databases, artifacts, tables, the model repository, keys and logins. A database is
copied by SQLite's own backup, and the log of a Delta table before its data files, so `up` and jobs
may go on: a restored table is as one of its commits left it. What is at a shared service, by
`MLFLOW_TRACKING_URI` or `MILLRACE_TABLES`, is not in the home and not in the file.

A home goes back to where it was. MLflow's database and the signatures of versions name its path.
"""

import gzip
import io
import json
import os
import sqlite3
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from shutil import rmtree
from typing import Any

from millrace.models.common.errors import InputError, WorkError, missing_file
from millrace.models.common.home_version import NEWEST, require_version
from millrace.tasks.progress import bar

MANIFEST = "home.json"
LEFT_OUT = frozenset({"backends", "cache", "logs", "run", "staging", "timing_caches", "training"})
"""Folders of a home that are made again when they are needed."""
KEPT_OF_RUN = frozenset({"prefect.login", "ray.token", "triton.token"})
SQLITE = b"SQLite format 3\0"
LATE_SUFFIXES = ("-wal", "-shm", "-journal")
"""Of files beside a database, whose content its copy has."""
MANIFEST_BYTES = 64 * 1024
CHUNK_BYTES = 1024 * 1024


@dataclass(frozen=True)
class Backup:
    """A backup that was written or read.

    Attributes:
        file: the backup.
        home: the home that it is of, absolute.
        layout: the version of the home's layout.
        made: when, UTC, ISO 8601.
        files: how many there are in it.
        size_bytes: of them, before compression.
    """

    file: Path
    home: Path
    layout: int
    made: str
    files: int
    size_bytes: int


def back_up(home: Path, file: Path) -> Backup:
    """Write a home into a new file that only this user may read.

    Raises:
        InputError: there is no home, the file is there already, or it would be inside the home.
        WorkError: the file cannot be written.
    """
    if not home.is_dir():
        raise InputError(f"there is no home {home}", hint="set MILLRACE_HOME to the one you mean")
    require_version(home)
    if file.exists():
        raise InputError(f"{file} is there already", hint="name a new file, or remove that one")
    if file.resolve().is_relative_to(home.resolve()):
        raise InputError(f"{file} is inside the home {home}", valid="a file outside of it")
    members = list(members_of(home))
    size = sum(path.stat().st_size for path in members)
    made = datetime.now(UTC).isoformat(timespec="seconds")
    backup = Backup(file, home.resolve(), NEWEST, made, len(members), size)
    staged = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        descriptor = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as out, tarfile.open(fileobj=out, mode="w:gz") as archive:
            _write(archive, backup, members)
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


def members_of(home: Path) -> Iterator[Path]:
    """Yield the files of a home that a backup holds, logs of Delta tables before their data."""
    found = []
    for folder, folders, names in os.walk(home):
        inside = Path(folder).relative_to(home)
        if not inside.parts:
            folders[:] = [name for name in folders if name not in LEFT_OUT - {"run"}]
        for name in names:
            path = Path(folder, name)
            is_kept = inside.parts[:1] != ("run",) or name in KEPT_OF_RUN
            if is_kept and path.is_file() and not path.is_symlink() and not _is_beside(path):
                found.append(path)
    yield from sorted(found, key=lambda path: ("_delta_log" not in path.parts, path))


def restore(home: Path, file: Path) -> Backup:
    """Put a backup's home where it was, whole or not at all.

    Raises:
        InputError: the file is no backup, is of another home or of a layout that this code does not
            read; or the home is there already.
        WorkError: the home cannot be written.
    """
    try:
        with gzip.open(file) as stream, tarfile.open(fileobj=stream, mode="r:") as archive:
            backup = _read_manifest(archive, file)
            _require_fit(backup, home)
            home.parent.mkdir(parents=True, exist_ok=True)
            staged = Path(tempfile.mkdtemp(prefix=f".{home.name}.", dir=home.parent))
            try:
                _extract(archive, backup, staged)
                while stream.read(CHUNK_BYTES):  # its checksum is at the end
                    pass
                require_version(staged)
                with suppress(FileNotFoundError):
                    home.rmdir()  # an empty one
                staged.rename(home)
            finally:
                rmtree(staged, ignore_errors=True)
    except (tarfile.TarError, zlib.error, gzip.BadGzipFile, EOFError, ValueError) as error:
        raise InputError(
            f"{file} is no whole backup of a home", seen=error, valid="what millrace backup wrote"
        ) from error
    except FileNotFoundError as error:
        raise missing_file(file, "the backup") from error
    except OSError as error:
        raise WorkError(
            f"{file} cannot be restored to {home}", seen=error.strerror or error
        ) from error
    return backup


def _write(archive: tarfile.TarFile, backup: Backup, members: list[Path]) -> None:
    text = json.dumps({**asdict(backup), "file": "", "home": str(backup.home)}).encode()
    head = tarfile.TarInfo(MANIFEST)
    head.size, head.mode = len(text), 0o600
    archive.addfile(head, io.BytesIO(text))
    with bar("backup", len(members), "files") as shown, tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "database")
        for number, path in enumerate(members, 1):
            name = str(path.relative_to(backup.home))
            with suppress(FileNotFoundError):  # a file that its owner removed meanwhile
                if _is_database(path):
                    _copy_database(path, copy)
                    archive.add(copy, name, filter=lambda info: _as(info, 0o600))
                    copy.unlink()
                else:
                    archive.add(path, name, recursive=False)
            shown.update(number)


def _as(info: tarfile.TarInfo, mode: int) -> tarfile.TarInfo:
    info.mode = mode
    return info


def _copy_database(path: Path, copy: Path) -> None:
    """Copy a SQLite database that others may be writing to."""
    with (
        closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=60)) as source,
        closing(sqlite3.connect(copy)) as target,
    ):
        source.backup(target)


def _is_database(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(SQLITE)) == SQLITE


def _is_beside(path: Path) -> bool:
    return path.name.endswith(LATE_SUFFIXES) and any(
        path.with_name(path.name.removesuffix(suffix)).exists() for suffix in LATE_SUFFIXES
    )


def _read_manifest(archive: tarfile.TarFile, file: Path) -> Backup:
    first = archive.next()
    if first is None or first.name != MANIFEST or not first.isfile() or first.size > MANIFEST_BYTES:
        raise ValueError(f"it does not begin with {MANIFEST}")
    stream = archive.extractfile(first)
    values: Any = json.loads(stream.read() if stream else b"")
    if not isinstance(values, dict) or not {"home", "layout", "made"} <= set(values):
        raise ValueError(f"its {MANIFEST} does not say of which home it is")
    return Backup(
        file,
        Path(str(values["home"])),
        int(values["layout"]),
        str(values["made"]),
        int(values.get("files", 0)),
        int(values.get("size_bytes", 0)),
    )


def _require_fit(backup: Backup, home: Path) -> None:
    if backup.home != home.resolve():
        raise InputError(
            f"{backup.file} is of another home",
            seen=home.resolve(),
            valid=backup.home,
            hint=f"set MILLRACE_HOME={backup.home}: its databases and signatures name that path",
        )
    if home.exists() and (not home.is_dir() or any(home.iterdir())):
        raise InputError(
            f"the home {home} is there already",
            valid="no home at that path, or an empty folder",
            hint="stop what runs with millrace down, and move it away",
        )


def _extract(archive: tarfile.TarFile, backup: Backup, staged: Path) -> None:
    with bar("restore", backup.files, "files") as shown:
        for number, member in enumerate(archive):
            if member.name == MANIFEST:
                continue
            if not member.isfile() or PurePosixPath(member.name).is_absolute():
                raise ValueError(f"it holds {member.name!r}, which is no file of a home")
            archive.extract(member, staged, filter="data")
            (staged / member.name).chmod(member.mode & 0o700)
            shown.update(number)
