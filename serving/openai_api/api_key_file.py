"""The file of the API keys: written whole, private to its owner, read again when it changes."""

import fcntl
import os
import secrets
import stat
from collections.abc import Callable, Sequence
from pathlib import Path

from millrace.models.common.errors import WorkError
from millrace.serving.openai_api.api_key import Key, from_json, to_json

FILE = "openai_keys.json"
"""In the home folder."""
MODE = 0o600
LOOK_SECONDS = 1.0

Change = Callable[[tuple[Key, ...]], tuple[Key, ...]]


def read(path: Path) -> tuple[Key, ...]:
    """Return the keys; none where there is no file.

    Raises:
        WorkError: the file cannot be read, or others may read or write it.
    """
    try:
        with path.open(encoding="utf-8") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            text = file.read()
    except FileNotFoundError:
        return ()
    except (OSError, UnicodeDecodeError) as error:
        raise WorkError(f"the API keys in {path} cannot be read", seen=error) from error
    if mode & 0o077:
        raise WorkError(
            f"others may read or write the API keys in {path}",
            seen=f"mode {mode:04o}",
            valid=f"mode {MODE:04o}",
            hint=f"run: chmod 600 {path}; and revoke the keys that you do not know",
        )
    return from_json(text)


def change(path: Path, by: Change) -> tuple[Key, ...]:
    """Put what a function makes of the keys into the file, and return it.

    Of several processes that do so at once, each finds what the one before has left.

    Args:
        path: the file; it is made if there is none.
        by: such as `added` or `revoked`, with their other arguments.

    Raises:
        WorkError: the file cannot be read or written.
        InputError: the function refuses.
    """
    try:
        lock = os.open(path.with_name(f".{path.name}.lock"), os.O_RDWR | os.O_CREAT, MODE)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            keys = by(read(path))
            _replace(path, keys)
        finally:
            os.close(lock)
    except OSError as error:
        raise WorkError(f"the API keys in {path} cannot be written", seen=error) from error
    return keys


def _replace(path: Path, keys: Sequence[Key]) -> None:
    staged = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        descriptor = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL, MODE)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(to_json(keys))
            file.flush()
            os.fsync(file.fileno())
        staged.replace(path)
    finally:
        staged.unlink(missing_ok=True)


class KeyFile:
    """The keys as they are now, looked at once in a second.

    Args:
        path: the file.
        clock: seconds that only grow.
    """

    def __init__(self, path: Path, clock: Callable[[], float]) -> None:
        self._path, self._clock = path, clock
        self._looked_at = float("-inf")
        self._seen: tuple[int, ...] | None = None
        self._keys: tuple[Key, ...] = ()

    def now(self) -> tuple[Key, ...]:
        """Return the keys.

        Raises:
            WorkError: the file has changed and cannot be read; nobody is let in by an old one.
        """
        if self._clock() - self._looked_at >= LOOK_SECONDS:
            seen = self._stamp()
            if seen != self._seen or seen is None:
                self._keys = read(self._path)
            self._seen, self._looked_at = seen, self._clock()
        return self._keys

    def _stamp(self) -> tuple[int, ...] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size, found.st_mode
