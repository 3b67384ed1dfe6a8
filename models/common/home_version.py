"""The version of the home folder's layout, by which this code tells whether it can read the folder.

A commit that changes how something is stored raises the version, and adds the code that reads the
previous layout. A home folder without a version file has the first layout.
"""

import re
from pathlib import Path

from millrace.models.common.errors import InputError
from millrace.models.common.private_files import replace_private

FILE = "home.version"
OLDEST, NEWEST = 1, 1
"""The layouts that this code reads; a new home folder has the newest."""


def require_version(home: Path) -> None:
    """Check the layout of a home folder, and write its version if it has none.

    Raises:
        InputError: the layout is older or newer than this code reads, or the version file has no
            number.
        OSError: the version file cannot be read or written.
    """
    if not check_version(home):
        replace_private(home / FILE, f"{NEWEST}\n")


def check_version(home: Path) -> bool:
    """Check the layout of a home folder; return whether the folder has a version file.

    Raises:
        InputError: the layout is older or newer than this code reads, or the version file has no
            number.
        OSError: the version file cannot be read.
    """
    file = home / FILE
    try:
        text = file.read_text(errors="replace")
    except (FileNotFoundError, NotADirectoryError):
        return False
    valid = f"{OLDEST} to {NEWEST}" if OLDEST < NEWEST else str(NEWEST)
    if not re.fullmatch(r"[0-9]{1,9}", stripped := text.strip()):
        raise InputError(
            f"{file} does not contain the layout version of the Millrace home folder "
            "(MILLRACE_HOME)",
            seen=text[:40],
            valid=valid,
            hint="restore the folder from a backup, or set MILLRACE_HOME to another folder",
        )
    if OLDEST <= (version := int(stripped)) <= NEWEST:
        return True
    made_by = "a newer" if version > NEWEST else "an older"
    raise InputError(
        f"the Millrace home folder {home} was made by {made_by} Millrace, whose layout this "
        "version cannot read",
        seen=f"layout version {version}",
        valid=valid,
        hint=f"use {made_by} Millrace for this folder, or set MILLRACE_HOME to another folder",
    )
