"""What files and folders take on the disk, and a home's folders by kind."""

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit

from millrace.models.common.installation import Installation
from millrace.models.data.snapshots import DATASETS, DEAD_LETTERS, PREDICTIONS, QUARANTINE
from millrace.serving.request_table import REQUEST_LOG, REQUESTS
from millrace.tasks.label_table import LABEL_TABLES

TABLES = {
    "snapshots": DATASETS,
    "quarantine": QUARANTINE,
    "predictions": PREDICTIONS,
    "dead letters": DEAD_LETTERS,
    "tokens": "tokens",
    "tokenizers": "tokenizers",
    "requests": REQUESTS,
    "labels": LABEL_TABLES,
    "releases": "releases",
}
FOLDERS = {
    "MLflow's artifacts": ("artifacts",),
    "MLflow's database": ("mlflow.db", "mlflow.db-wal"),
    "Prefect": ("prefect",),
    "served models": ("model_repository", "backends"),
    "caches": ("cache", "receipts", "timing_caches"),
    "checkpoints": ("training",),
    "staging": ("staging",),
    "requests to collect": (REQUEST_LOG,),
    "logs": ("logs",),
}


def measure_disk(installation: Installation) -> Mapping[str, int]:
    """Return the size in bytes of each kind of files, without kinds that have none.

    Tables in an object store are left out. A folder of the home may be a link to another disk.
    """
    found: dict[str, int] = {}
    for kind, name in TABLES.items():
        folder = _local_folder(installation.table(name))
        found[kind] = 0 if folder is None else _size(folder)
    for kind, names in FOLDERS.items():
        found[kind] = sum(_size(installation.home / name) for name in names)
    return {kind: size for kind, size in found.items() if size}


def measure(path: Path) -> tuple[int, int]:
    """Return the number of files of a file, link or folder, and their size in bytes.

    Raises:
        FileNotFoundError: it does not exist.
    """
    if path.is_symlink() or not path.is_dir():
        return 1, path.lstat().st_size
    sizes = list(find_sizes(path))
    return len(sizes), sum(sizes)


def find_sizes(folder: Path | str) -> Iterator[int]:
    """Yield the size in bytes of each file and link below a folder.

    Files and folders that vanish meanwhile are left out. No link is followed.
    """
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from find_sizes(entry.path)
            else:
                with suppress(FileNotFoundError):
                    yield entry.stat(follow_symlinks=False).st_size


def _size(path: Path) -> int:
    if path.is_dir():
        return sum(find_sizes(path))
    with suppress(FileNotFoundError):
        return path.stat().st_size
    return 0


def _local_folder(uri: str) -> Path | None:
    """Return the folder of a path or of a `file` URI; None for an object store."""
    if "://" not in uri:
        return Path(uri)
    parts = urlsplit(uri)
    return Path(unquote(parts.path)) if parts.scheme == "file" else None
