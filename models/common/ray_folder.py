"""The folder of the embedded Ray: its sockets, its logs, and the code that its workers unpack.

Ray's own choice is `/tmp/ray`, which it opens to every user of the machine with all that is in it,
so that another user could put a link in the place of a log and have this user's Ray write into any
file of this user's. It gives its folder those rights wherever that is; so ours is inside of one
that only this user may enter. It is not in the home, whose path may be too long for a socket.
"""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from millrace.models.common.errors import WorkError

RAY = "ray"
NAMES = 20
"""How many are tried: another user may make a folder of that name first, and so stop nothing."""


def ray_folder() -> Path:
    """Return Ray's folder, in one that is made if there is none and that only this user may enter.

    Raises:
        WorkError: it cannot be made, or others have taken all of its names.
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
    """Return where Ray's logs are, in words."""
    return ", ".join(["Ray's logs", *map(str, ray_folders())])


def ray_folders() -> Iterator[Path]:
    """Yield those that there are."""
    return (path / RAY for path in filter(is_private, _candidates()))


def is_private(path: Path) -> bool:
    """Return whether a folder is this user's, no link, and closed to everybody else."""
    try:
        found = path.lstat()
    except OSError:
        return False
    mine = found.st_uid == os.getuid() and not found.st_mode & 0o077
    return mine and stat.S_ISDIR(found.st_mode)


def _candidates() -> Iterator[Path]:
    folder = Path(os.environ.get("RAY_TMPDIR") or "/tmp")  # noqa: S108 - as Ray does
    yield folder / _name()
    yield from (folder / f"{_name()}-{number}" for number in range(1, NAMES))


def _name() -> str:
    return f"millrace-{os.getuid()}"
