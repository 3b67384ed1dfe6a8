"""Small files that only this user may read, written atomically."""

import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path


def replace_private(path: Path, text: str) -> None:
    """Write `text` to `path` atomically, readable by this user only."""
    staged = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    descriptor = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w") as handle:
            handle.write(text)
        staged.replace(path)
    except BaseException:
        staged.unlink(missing_ok=True)
        raise


def read_or_create_secret(path: Path, make: Callable[[], str]) -> str:
    """Return the secret in `path`; the first caller makes and writes it (mode 0600).

    Concurrent processes all get the same secret: a hard link never replaces a file.
    """
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        staged = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
        replace_private(staged, make())
        with suppress(FileExistsError):
            path.hardlink_to(staged)
        staged.unlink()
    return path.read_text()
