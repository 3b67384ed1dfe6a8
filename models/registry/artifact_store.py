"""Lists the files of a version in MLflow's artifact store with their sizes, then fetches them.

Whoever registers a version says where its files are, and may put more there than fits on the disk,
or a link to a file that never ends. So a caller first lists names and sizes, and then fetches only
the files that it expects, one by one. From a local file, at most the listed size is copied.

An MLflow without a login lets every user of the machine create experiments, even with the name of
a later pipeline, and choose the folder of their artifacts. A link in such a folder could redirect
the writes of a run to any file of the user who runs it. So a run writes to no local folder that
others may change.
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
        location: an experiment's `artifact_location`; only paths and `file` URIs are checked.
        installation: the installation, whose own folder of artifacts is known to be private.

    Raises:
        InputError: another user owns, or may change, the folder or a parent of it.
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
            "the MLflow experiment of this run stores its artifacts where another user may change "
            "them",
            seen=f"{location}: {open_to_others}",
            valid=f"a folder of your own, such as one in {installation.artifacts}",
            hint="rename the experiment in the MLflow UI, and run the command again; the command "
            "then creates a new experiment",
        )


def _find_shared_part(folder: Path) -> str | None:
    """Return which part of a path another user may change, with the reason; None if no part."""
    for part in (*reversed(folder.parents), folder):
        try:
            found = part.lstat()
        except OSError:
            shared = part.parent.stat().st_mode & stat.S_IWOTH
            return f"{part} does not exist, and other users may create it" if shared else None
        if found.st_uid not in (0, os.getuid()):
            return f"{part} belongs to the user {found.st_uid}"
        is_shared = found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX
        if is_shared and not stat.S_ISLNK(found.st_mode):
            return f"everybody may write in {part}"
    return None


MOST_FILES = 1000
"""Largest number of files in a version; an exported variant has about ten."""
_RESERVE = 1 << 30
_RESERVE_SHARE = 20
_PIECE = 1 << 20


@dataclass(frozen=True)
class StoredFolder:
    """The folder of a version in an artifact store.

    Attributes:
        uri: URI of the folder.
        tracking_uri: address of the MLflow that gave the URI.
    """

    uri: str
    tracking_uri: str

    def sizes(self, folder: str = "") -> dict[str, int]:
        """Return names and sizes in bytes of the files in the folder, or in a subfolder.

        A missing size counts as 0: MLflow's own proxy gives no size for an empty file.
        """
        from mlflow.artifacts import list_artifacts

        found = list_artifacts(artifact_uri=self._of(folder), tracking_uri=self.tracking_uri)
        files = [each for each in found if not each.is_dir]
        return {each.path.rpartition("/")[2]: each.file_size or 0 for each in files}

    def fetch(self, path: str, size: int, to: Path) -> None:
        """Write one file to a new path.

        Args:
            path: path of the file in the folder.
            size: its size, as it was listed.
            to: the new file; a folder beside it is used during the download.

        Raises:
            FileNotFoundError: the file does not exist, or is not a plain file.
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
    """Refuse to write files to a disk if too little space would remain.

    Args:
        size: total size of the files, in bytes.
        folder: a folder on the disk.
        what: what the files belong to, for the error.

    Raises:
        WorkError: the disk has too little space. The error's cause is an OSError, as for a full
            disk.
    """
    disk = shutil.disk_usage(folder)
    most = disk.free - min(_RESERVE, disk.total // _RESERVE_SHARE)
    if size > most:
        raise WorkError(
            f"the disk has too little free space for the files of {what}",
            seen=f"{size:,} bytes needed",
            valid=f"at most {max(most, 0):,} bytes, which are free on the disk of {folder}",
            hint="free disk space there, and run the command again",
        ) from OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _copy(file: Path, size: int, to: Path) -> None:
    """Copy at most `size` bytes of a plain file; a larger file fails the digest check later."""
    try:
        # Follow no link, and do not wait for a writer if the file is a pipe.
        opened = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENXIO):
            raise
        raise FileNotFoundError(f"{file.name} is not a plain file") from error
    with os.fdopen(opened, "rb") as source, to.open("xb") as target:
        if not stat.S_ISREG(os.fstat(opened).st_mode):
            raise FileNotFoundError(f"{file.name} is not a plain file")
        while size > 0 and (piece := source.read(min(_PIECE, size))):
            target.write(piece)
            size -= len(piece)
