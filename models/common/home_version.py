"""The version of a home's layout, which says whether this code can work with it.

It is raised by a commit that stores something in another form, together with the code that reads
the form before. A home without the file was made before there was one, and has the first layout.
"""

from pathlib import Path

from millrace.models.common.errors import InputError
from millrace.models.common.private_files import replace_private

FILE = "home.version"
OLDEST, NEWEST = 1, 1
"""The layouts that this code reads; a new home has the newest."""


def require_version(home: Path) -> None:
    """Check the layout of a home, and write it down where nothing says it yet.

    Raises:
        InputError: it is older or newer than what this code reads, or its file says no number.
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
