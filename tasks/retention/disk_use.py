"""What a home's folders take on the disk, by kind."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from millrace.models.common.installation import Installation

TABLES = {
    "snapshots": "datasets",
    "quarantine": "quarantine",
    "predictions": "predictions",
    "dead letters": "dead_letters",
    "tokens": "tokens",
    "tokenizers": "tokenizers",
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
    "logs": ("logs",),
}


def measure_disk(installation: Installation) -> Mapping[str, int]:
    """Return the size in bytes of each kind of files, without kinds that have none.

    Tables in an object store are left out.
    """
    found: dict[str, int] = {}
    if "://" not in installation.tables_uri:
        for kind, name in TABLES.items():
            found[kind] = _size(Path(installation.table(name)))
    for kind, names in FOLDERS.items():
        found[kind] = sum(_size(installation.home / name) for name in names)
    return {kind: size for kind, size in found.items() if size}


def _size(path: Path) -> int:
    if not path.is_dir():
        return path.stat().st_size if path.is_file() else 0
    return sum(_sizes(str(path)))


def _sizes(folder: str) -> Iterator[int]:
    """Yield the size of each file below a folder; files that vanish meanwhile are left out."""
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    yield from _sizes(entry.path)
                else:
                    yield entry.stat(follow_symlinks=False).st_size
    except FileNotFoundError:
        return
