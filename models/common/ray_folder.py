"""The folder of the embedded Ray: its sockets, its logs, and the code that its workers unpack.

Ray's default is `/tmp/ray`, which every user of the machine may write to: another user could
replace a log by a link, and so make Ray write into any file of the user who started it. Ray lets
every user write to its folder wherever the folder is, so Millrace puts it into a private folder,
which only this user may enter. The private folder is not in the home folder, whose path may be too
long for a socket.
"""

import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from millrace.models.common.errors import WorkError
from millrace.models.common.file_locks import is_locked

RAY = "ray"
LOGS_SECONDS = 7 * 24 * 3600.0
"""Age from which the logs of a Ray that has ended are removed."""
NEW_SECONDS = 60.0
"""A folder of a command may be that new and not be locked yet."""
NAMES = 20
"""Number of names to try, so that another user who creates the first one cannot block this user."""


def ray_folder() -> Path:
    """Return Ray's folder, inside a private folder that is created if there is none.

    Raises:
        WorkError: the private folder cannot be created, or other users have taken all its names.
    """
    for path in _candidates():
        try:
            path.mkdir(mode=0o700)
        except FileExistsError:
            pass
        except OSError as error:
            raise WorkError(
                "the folder of the embedded Ray cannot be created",
                seen=f"{path}: {error.strerror}",
                hint="set RAY_TMPDIR to a folder that you may write to; its path must be short, "
                "because Ray puts Unix sockets there, whose paths have at most some 100 characters",
            ) from error
        if is_private(path):
            return path / RAY
    raise WorkError(
        "the folder of the embedded Ray cannot be created",
        seen=f"{path.with_name(_name())} and {NAMES - 1} similar paths exist; none is a folder "
        "that only this user may enter",
        hint="remove them, or set RAY_TMPDIR to a folder of your own; its path must be short, "
        "because Ray puts Unix sockets there, whose paths have at most some 100 characters",
    )


def fork_server_socket(pid: int) -> Path:
    """Return the socket of the fork server of the Ray whose server has this process id."""
    return ray_folder().with_name(f"fork-{pid}.sock")


def remove_leftovers(folder: Path, now: float) -> None:
    """Remove what Rays of earlier commands left in the private folder: sockets, folders, old logs.

    Each is named after the process that made it, or its files are locked while they are used.

    Args:
        folder: the private folder.
        now: seconds since the epoch.
    """
    found = (
        *folder.glob("fork-*.sock*"),
        *(folder / RAY).glob("session_*_*"),
        *folder.glob("run-*"),
    )
    for path in found:
        with suppress(OSError):  # another command removes it
            if _is_left(path, now - path.lstat().st_mtime):
                path.unlink() if path.is_socket() else shutil.rmtree(path, ignore_errors=True)


def _is_left(path: Path, age: float) -> bool:
    """Return whether nobody uses a socket, a folder of logs or a folder of a command any more."""
    if path.name.startswith("fork-"):
        return not _runs(path.name.removeprefix("fork-").partition(".")[0])
    if path.name.startswith("session_"):
        return age > LOGS_SECONDS and not _runs(path.name.rpartition("_")[2])
    return age > NEW_SECONDS and not _is_shared(path)


def _runs(pid: str) -> bool:
    return pid.isdecimal() and Path("/proc", pid).exists()


def _is_shared(run: Path) -> bool:
    """Return whether a command holds a share of the Ray in the folder."""
    return any(map(is_locked, run.glob("ray/share-*")))


def ray_logs() -> str:
    """Return where Ray's logs are, as text for a message."""
    return ", ".join(["Ray's logs", *map(str, ray_folders())])


def ray_folders() -> Iterator[Path]:
    """Yield Ray's folders that exist."""
    return (path / RAY for path in filter(is_private, _candidates()))


def is_private(path: Path) -> bool:
    """Return whether a path is a folder, not a link, that only this user may enter."""
    try:
        status = path.lstat()
    except OSError:
        return False
    is_mine = status.st_uid == os.getuid() and not status.st_mode & 0o077
    return is_mine and stat.S_ISDIR(status.st_mode)


def _candidates() -> Iterator[Path]:
    folder = Path(os.environ.get("RAY_TMPDIR") or "/tmp")  # noqa: S108 - as Ray does
    yield folder / _name()
    yield from (folder / f"{_name()}-{number}" for number in range(1, NAMES))


def _name() -> str:
    return f"millrace-{os.getuid()}"
