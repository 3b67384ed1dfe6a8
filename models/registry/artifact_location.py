"""Whether a run may keep its files where an experiment of MLflow says.

An MLflow without a login lets everybody of the machine make experiments, also one with the name of
a pipeline to come, and say where its artifacts lie: in a folder of theirs, whose links lead what is
written there to any file of the one who runs the pipeline.
"""

import os
import stat
from pathlib import Path
from urllib.parse import unquote, urlsplit

from millrace.models.common.errors import InputError
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
    if (open_to_others := _not_ours(folder) or _not_ours(folder.resolve())) is not None:
        raise InputError(
            "the experiment keeps its artifacts where another user may change them",
            seen=f"{location}: {open_to_others}",
            valid=f"a folder of your own, such as one in {installation.artifacts}",
            hint="rename that experiment in MLflow, and run again: a new one is made",
        )


def _not_ours(folder: Path) -> str | None:
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
