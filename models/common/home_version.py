"""The version of a home's layout: whether this code can work with a home.

A commit that changes how something is stored raises it, and adds the code that reads the layout
before. A home without the file is older than the file, and has the first layout.
"""

from pathlib import Path

from millrace.models.common.errors import InputError
from millrace.models.common.private_files import replace_private

FILE = "home.version"
OLDEST, NEWEST = 1, 1
"""The layouts that this code reads; a new home has the newest."""


def require_version(home: Path) -> None:
    """Check the layout of a home, and write its version if the home has none.

    Raises:
        InputError: the layout is older or newer than this code reads, or the file has no number.
        OSError: the file cannot be read or written.
    """
    file = home / FILE
    try:
        text = file.read_text()
    except FileNotFoundError:
        replace_private(file, f"{NEWEST}\n")
        return
    valid = f"{OLDEST} to {NEWEST}" if OLDEST < NEWEST else str(NEWEST)
    if not (stripped := text.strip()).isascii() or not stripped.isdigit():
        raise InputError(
            f"{file} does not say which layout the home has",
            seen=text[:40],
            valid=valid,
            hint="restore the home from a backup, or set MILLRACE_HOME to another folder",
        )
    if OLDEST <= (version := int(stripped)) <= NEWEST:
        return
    made_by = "a newer" if version > NEWEST else "an older"
    raise InputError(
        f"the home {home} was made by {made_by} Millrace, whose layout this one does not read",
        seen=version,
        valid=valid,
        hint=f"use {made_by} Millrace for it, or set MILLRACE_HOME to another folder",
    )
