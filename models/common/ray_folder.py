"""The folder of the embedded Ray: its sockets, its logs, and the code that its workers unpack.

Ray's own choice is `/tmp/ray`, which every user of the machine may write to: another user could
replace a log by a link and make this user's Ray write into any file of this user's. Ray sets those
permissions wherever its folder is, so Millrace puts it in a folder that only this user may enter,
and not in the home, whose path may be too long for a socket.
"""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from millrace.models.common.errors import WorkError

RAY = "ray"
NAMES = 20
"""Names to try: another user who makes a folder of the first name must not block us."""


def ray_folder() -> Path:
    """Return Ray's folder, inside a private folder that is made if there is none.

    Raises:
        WorkError: the private folder cannot be made, or others have taken all of its names.
    """
    for path in _candidates():
        try:
            path.mkdir(mode=0o700)
        except FileExistsError:
            pass
        except OSError as error:
            raise WorkError(
                "the folder of the embedded Ray cannot be made",
                seen=f"{path}: {error.strerror}",
                hint="set RAY_TMPDIR to a folder with a short path that you may write to",
            ) from error
        if is_private(path):
            return path / RAY
    raise WorkError(
        "the folder of the embedded Ray cannot be made",
        seen=f"{path.with_name(_name())} and {NAMES - 1} like it are there, open to others",
        hint="remove them, or set RAY_TMPDIR to a folder of your own with a short path",
    )


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
