"""API keys: a name, a limit, and the digest of a secret that is shown once.

A secret is 32 random bytes, so that its SHA-256 needs neither salt nor stretching: there is
nothing to guess, and who reads the digests cannot ask with them.
"""

import hashlib
import hmac
import json
import re
import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from millrace.models.common.errors import InputError, WorkError, nearest

PREFIX = "mr-"
SECRET_BYTES = 32
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Key:
    """Who may ask, and how much.

    Attributes:
        name: of a person or a program; shows in the log.
        digest: SHA-256 of the secret, in hex.
        tokens_per_minute: tokens of prompts and answers together.
        created_at: whole seconds since the epoch.
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
                f"the digest of the key {self.name} is not valid", valid="64 digits of hex"
            )


def new_secret() -> str:
    """Return a new secret, for its owner alone."""
    return PREFIX + secrets.token_urlsafe(SECRET_BYTES)


def digest_of(secret: str) -> str:
    """Return what is kept of a secret."""
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()


def added(
    keys: Sequence[Key], name: str, tokens_per_minute: int, *, secret: str, now: float
) -> tuple[Key, ...]:
    """Return the keys with one more.

    Args:
        keys: those that there are.
        name: of the new one.
        tokens_per_minute: its limit.
        secret: from `new_secret`.
        now: seconds since the epoch.

    Raises:
        InputError: the name or the limit is not valid, or another key has the name.
    """
    if any(key.name == name for key in keys):
        raise InputError(
            "there is an API key of this name", seen=name, hint="revoke it first, or choose another"
        )
    return (*keys, Key(name, digest_of(secret), tokens_per_minute, int(now)))


def revoked(keys: Sequence[Key], name: str) -> tuple[Key, ...]:
    """Return the keys without one.

    Raises:
        InputError: there is none of this name.
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


def owner(keys: Sequence[Key], secret: str) -> Key | None:
    """Return the key whose secret it is, in a time that does not tell how near a wrong one is."""
    digest, found = digest_of(secret), None
    for key in keys:
        if hmac.compare_digest(key.digest, digest):
            found = key
    return found


def to_json(keys: Sequence[Key]) -> str:
    """Return the keys as the text of a file."""
    return json.dumps({"keys": [asdict(key) for key in keys]}, indent=2) + "\n"


def from_json(text: str) -> tuple[Key, ...]:
    """Read what `to_json` wrote.

    Raises:
        WorkError: it did not.
    """
    try:
        return tuple(Key(**values) for values in json.loads(text)["keys"])
    except (ValueError, TypeError, KeyError, InputError) as error:
        raise WorkError("the API keys cannot be read", seen=error) from error
