"""Removes what killed commands left in a home, and old logs."""

import shutil
from collections.abc import Iterable
from datetime import datetime, timedelta
from pathlib import Path

from millrace.models.common.installation import Installation
from millrace.models.common.log_files import is_log_in_use
from millrace.models.config.retention_spec import RetentionSpec
from millrace.models.registry.open_runs import find_open_runs
from millrace.tasks.retention.cleaned import Cleaned, describe
from millrace.tasks.retention.disk_use import measure


def clean_home(
    installation: Installation,
    retention: RetentionSpec,
    now: datetime,
    *,
    dry_run: bool,
) -> list[Cleaned]:
    """Remove old entries of the folders for staging, checkpoints and logs.

    A log that a process writes stays.

    Args:
        installation: the installation.
        retention: how long they stay.
        now: the time.
        dry_run: whether only to report.
    """
    cleaned = []
    if retention.staging is not None:
        before = now - timedelta(days=retention.staging)
        left = find_left_work(installation, before)
        cleaned.append(_remove("staging", left, dry_run=dry_run))
    if retention.logs is not None:
        before = now - timedelta(days=retention.logs)
        logs = [
            file
            for file in _entries(installation.logs)
            if _changed(file) < before.timestamp() and not is_log_in_use(file)
        ]
        cleaned.append(_remove("logs", logs, dry_run=dry_run))
    return cleaned


def find_left_work(installation: Installation, before: datetime) -> list[Path]:
    """Return what ended commands left in the folders for staging and checkpoints.

    Whatever changed since an open run began may belong to that run, and is left out.

    Args:
        installation: the installation.
        before: only older entries are returned.
    """
    open_runs = find_open_runs(installation.run)
    limit = min([before.timestamp(), *open_runs.values()])
    folders = (installation.staging, installation.home / "training")
    entries = [entry for folder in folders for entry in _entries(folder)]
    return [entry for entry in entries if _changed(entry) < limit]


def _remove(kind: str, entries: Iterable[Path], *, dry_run: bool) -> Cleaned:
    names, skipped, files, size = [], [], 0, 0
    for entry in entries:
        try:
            count, taken = measure(entry)
            if not dry_run:
                _delete(entry)
        except FileNotFoundError:
            continue
        except OSError as error:
            skipped.append(describe(error))
            continue
        names.append(f"{entry.parent.name}/{entry.name}")
        files, size = files + count, size + taken
    return Cleaned(kind, removed=tuple(names), files=files, size=size, skipped=tuple(skipped))


def _delete(entry: Path) -> None:
    if entry.is_dir() and not entry.is_symlink():
        shutil.rmtree(entry)
    else:
        entry.unlink()


def _entries(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _changed(path: Path) -> float:
    """Return when a file, or an entry directly in a folder, was changed last."""
    try:
        inner = path.iterdir() if path.is_dir() and not path.is_symlink() else ()
        return float(max(entry.lstat().st_mtime for entry in (path, *inner)))
    except FileNotFoundError:  # removed meanwhile
        return float("inf")
