"""API keys and their file. A key has a name, a limit, and the digest of a secret shown only once.

A secret is 32 random bytes, so its SHA-256 needs neither salt nor key stretching: a secret cannot
be guessed, and somebody who reads a digest cannot authenticate with it. Only the owner may read the
file. It is replaced atomically, and the server reads it again when it changes.
"""

import fcntl
import hashlib
import hmac
import json
import os
import re
import secrets
import stat
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from millrace.models.common.errors import InputError, WorkError, nearest

KEYS_FILE = "openai_keys.json"
"""Name of the file of API keys, in MILLRACE_HOME."""
MODE = 0o600
REFRESH_SECONDS = 1.0
PREFIX = "mr-"
SECRET_BYTES = 32
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class ApiKey:
    """An API key: its holder may send requests, up to a number of tokens per minute.

    Attributes:
        name: the name of a person or a program; it appears in the log.
        digest: the SHA-256 of the secret, in hex.
        tokens_per_minute: the limit for the tokens of prompts and answers together.
        created_at: when the key was created, in whole seconds since the epoch.
    """

    name: str
    digest: str
    tokens_per_minute: int
    created_at: int

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not NAME.fullmatch(self.name):
            raise InputError(
                "the name of an API key is not valid",
                seen=self.name,
                valid="1 to 64 letters, digits and . _ @ -",
            )
        limit = self.tokens_per_minute
        if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
            raise InputError(
                f"tokens_per_minute of the key {self.name} is not valid",
                seen=limit,
                valid="a whole number, at least 1",
            )
        if not isinstance(self.digest, str) or not DIGEST.fullmatch(self.digest):
            raise InputError(
                f"the digest of the key {self.name} is not valid", valid="64 hexadecimal digits"
            )


def create_secret() -> str:
    """Return a new random secret, to be shown only to its owner."""
    return PREFIX + secrets.token_urlsafe(SECRET_BYTES)


def hash_secret(secret: str) -> str:
    """Return the SHA-256 of a secret, in hex."""
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()


def add_key(
    keys: Sequence[ApiKey], name: str, tokens_per_minute: int, *, secret: str, now: float
) -> tuple[ApiKey, ...]:
    """Return the keys with a new one added.

    Args:
        keys: the existing keys.
        name: the name of the new key.
        tokens_per_minute: the limit of the new key.
        secret: the new key's secret, from `create_secret`.
        now: the time, in seconds since the epoch.

    Raises:
        InputError: the name or the limit is not valid, or another key has this name.
    """
    if any(key.name == name for key in keys):
        raise InputError(
            "an API key with this name already exists",
            seen=name,
            hint="revoke it first, or choose another name",
        )
    return (*keys, ApiKey(name, hash_secret(secret), tokens_per_minute, int(now)))


def revoke_key(keys: Sequence[ApiKey], name: str) -> tuple[ApiKey, ...]:
    """Return the keys without the one of this name.

    Raises:
        InputError: no key has this name.
    """
    names = [key.name for key in keys]
    if name not in names:
        raise InputError(
            "there is no API key of this name",
            seen=name,
            valid=", ".join(names) or "none: there are no keys",
            hint=nearest(name, names),
        )
    return tuple(key for key in keys if key.name != name)


def find_owner(keys: Sequence[ApiKey], secret: str) -> ApiKey | None:
    """Return the key that a secret belongs to; None if there is none. Compares in constant time."""
    digest, owner = hash_secret(secret), None
    for key in keys:
        if hmac.compare_digest(key.digest, digest):
            owner = key
    return owner


def serialize_keys(keys: Sequence[ApiKey]) -> str:
    """Return the keys as the text of the key file."""
    return json.dumps({"keys": [asdict(key) for key in keys]}, indent=2) + "\n"


def parse_keys(text: str) -> tuple[ApiKey, ...]:
    """Return the keys in the text of a key file, the inverse of `serialize_keys`.

    Raises:
        WorkError: the text is not valid.
    """
    try:
        return tuple(ApiKey(**values) for values in json.loads(text)["keys"])
    except (ValueError, TypeError, KeyError, InputError) as error:
        raise WorkError(
            f"the API keys cannot be read from {KEYS_FILE} in MILLRACE_HOME", seen=error
        ) from error


def read_keys(path: Path) -> tuple[ApiKey, ...]:
    """Return the keys in a file; empty if the file does not exist.

    Raises:
        WorkError: the file cannot be read, or other users may read or write it.
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
            f"other users may read or write the API keys in {path}",
            seen=f"mode {mode:04o}",
            valid=f"mode {MODE:04o}",
            hint=f"run: chmod 600 {path}; and revoke the keys that you do not know",
        )
    return parse_keys(text)


def update_keys(
    path: Path, change: Callable[[tuple[ApiKey, ...]], tuple[ApiKey, ...]]
) -> tuple[ApiKey, ...]:
    """Apply a change to the keys in a file, and return the result.

    A lock serializes the changes of several processes.

    Args:
        path: the file; it is created if it does not exist.
        change: a function that gets the existing keys and returns the new keys. Examples are
            `add_key` and `revoke_key` with their other arguments bound.

    Raises:
        WorkError: the file cannot be read or written.
        InputError: `change` refuses to change the keys.
    """
    try:
        lock = os.open(path.with_name(f".{path.name}.lock"), os.O_RDWR | os.O_CREAT, MODE)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            keys = change(read_keys(path))
            _write_keys(path, keys)
        finally:
            os.close(lock)
    except OSError as error:
        raise WorkError(f"the API keys in {path} cannot be written", seen=error) from error
    return keys


def _write_keys(path: Path, keys: Sequence[ApiKey]) -> None:
    staged = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        descriptor = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL, MODE)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(serialize_keys(keys))
            file.flush()
            os.fsync(file.fileno())
        staged.replace(path)
    finally:
        staged.unlink(missing_ok=True)


class KeyFile:
    """The current keys of a file. The file is checked for changes at most once a second.

    Args:
        path: the file.
        clock: returns monotonic seconds.
    """

    def __init__(self, path: Path, clock: Callable[[], float]) -> None:
        self._path, self._clock = path, clock
        self._checked_at = float("-inf")
        self._status: tuple[int, ...] | None = None
        self._keys: tuple[ApiKey, ...] = ()

    def read_current(self) -> tuple[ApiKey, ...]:
        """Return the current keys.

        Raises:
            WorkError: the file has changed and cannot be read. Then no key is accepted.
        """
        if self._clock() - self._checked_at >= REFRESH_SECONDS:
            status = self._read_status()
            if status != self._status or status is None:
                self._keys = read_keys(self._path)
            self._status, self._checked_at = status, self._clock()
        return self._keys

    def _read_status(self) -> tuple[int, ...] | None:
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size, status.st_mode
