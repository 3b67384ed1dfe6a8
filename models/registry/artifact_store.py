"""The files of a version in MLflow's artifact store: listed with their sizes, then fetched.

Whoever registers a version says where its files are, and may put there more than the disk holds, or
a link to what never ends. So a caller asks for names and sizes first, fetches the files that it
knows, one by one, and of a local one no more bytes than were listed.

An MLflow without a login lets every user of the machine make experiments, also one with the name of
a later pipeline, and choose the folder of its artifacts. A link in such a folder could lead what a
run writes to any file of its user. So a run writes to no local folder that others may change.
"""

import errno
import os
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from millrace.models.common.errors import InputError, WorkError
from millrace.models.common.installation import Installation


def require_own(location: str, installation: Installation) -> None:
    """Refuse a local folder that another user of the machine may change.

    Args:
        location: an experiment's `artifact_location`; of other schemes than `file` none is local.
        installation: whose own artifacts are known to be private.

    Raises:
        InputError: it is, or lies in, a folder of somebody else.
    """
    parts = urlsplit(location)
    if parts.scheme not in ("", "file"):
        return
    folder = Path(unquote(parts.path))
    if folder.is_relative_to(installation.artifacts):
        return
    if (
        open_to_others := _find_shared_part(folder) or _find_shared_part(folder.resolve())
    ) is not None:
        raise InputError(
            "the experiment keeps its artifacts where another user may change them",
            seen=f"{location}: {open_to_others}",
            valid=f"a folder of your own, such as one in {installation.artifacts}",
            hint="rename that experiment in MLflow, and run again: a new one is made",
        )


def _find_shared_part(folder: Path) -> str | None:
    """Return the part of a path that another user may change, with the reason; None if none is."""
    for part in (*reversed(folder.parents), folder):
        try:
            found = part.lstat()
        except OSError:
            shared = part.parent.stat().st_mode & stat.S_IWOTH
            return f"{part} is not there, and others may make it" if shared else None
        if found.st_uid not in (0, os.getuid()):
            return f"{part} belongs to the user {found.st_uid}"
        is_shared = found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX
        if is_shared and not stat.S_ISLNK(found.st_mode):
            return f"everybody may write in {part}"
    return None


MOST_FILES = 1000
"""In one folder of a version; a variant has some ten."""
_RESERVE = 1 << 30
_RESERVE_SHARE = 20
_PIECE = 1 << 20


@dataclass(frozen=True)
class StoredFolder:
    """The folder of a version in an artifact store.

    Attributes:
        uri: its address.
        tracking_uri: of the MLflow that named it.
    """

    uri: str
    tracking_uri: str

    def sizes(self, folder: str = "") -> dict[str, int]:
        """Return names and sizes of the files in the folder, or in one below it, without folders.

        A store that tells no size, as MLflow's own proxy does of an empty file, counts as 0.
        """
        from mlflow.artifacts import list_artifacts

        found = list_artifacts(artifact_uri=self._of(folder), tracking_uri=self.tracking_uri)
        files = [each for each in found if not each.is_dir]
        return {each.path.rpartition("/")[2]: each.file_size or 0 for each in files}

    def fetch(self, path: str, size: int, to: Path) -> None:
        """Write one file to a new path.

        Args:
            path: in the folder.
            size: as it was listed.
            to: the new file; a folder beside it is used for what is under way.

        Raises:
            FileNotFoundError: it is not there, or is no plain file.
        """
        from mlflow.artifacts import download_artifacts
        from mlflow.utils.file_utils import local_file_uri_to_path

        if urlsplit(self.uri).scheme in ("", "file"):
            own = local_file_uri_to_path(self.uri)  # type: ignore[no-untyped-call]
            _copy(Path(own, path), size, to)
            return
        got = download_artifacts(
            artifact_uri=self._of(path), dst_path=f"{to}.part", tracking_uri=self.tracking_uri
        )
        Path(got).rename(to)
        shutil.rmtree(f"{to}.part")

    def _of(self, path: str) -> str:
        return f"{self.uri.rstrip('/')}/{path}" if path else self.uri


def require_room(size: int, folder: Path, what: str) -> None:
    """Refuse to write so much to the disk of a folder that little would be left.

    Args:
        size: bytes.
        folder: on the disk.
        what: of which the bytes are.

    Raises:
        WorkError: it is a fault of the disk, not of what would be written.
    """
    disk = shutil.disk_usage(folder)
    most = disk.free - min(_RESERVE, disk.total // _RESERVE_SHARE)
    if size > most:
        raise WorkError(
            f"the disk has no room for the files of {what}",
            seen=f"{size:,} bytes",
            valid=f"at most {max(most, 0):,} on the disk of {folder}",
            hint="make room there, and run the command again",
        ) from OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _copy(file: Path, size: int, to: Path) -> None:
    """Copy a plain file, and no more than its listed size of it: digests tell what was cut."""
    try:
        # Neither through a link, nor waiting for a writer as a pipe does.
        opened = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENXIO):
            raise
        raise FileNotFoundError(f"{file.name} is no plain file") from error
    with os.fdopen(opened, "rb") as source, to.open("xb") as target:
        if not stat.S_ISREG(os.fstat(opened).st_mode):
            raise FileNotFoundError(f"{file.name} is no plain file")
        while size > 0 and (piece := source.read(min(_PIECE, size))):
            target.write(piece)
            size -= len(piece)
