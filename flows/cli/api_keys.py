"""`millrace keys`: who may use the OpenAI-compatible server, and how much."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

from millrace.flows.console import print_hint, print_piece, print_table
from millrace.flows.settings import LOOPBACK, Settings
from millrace.serving.openai_api import api_key
from millrace.serving.openai_api.api_key import KEYS_FILE, ApiKey, create_secret


@dataclass(frozen=True)
class NewKey:
    """A key that was just created.

    Attributes:
        name: of a person or a program.
        tokens_per_minute: tokens of prompts and answers together.
        secret: what its owner sends; it is shown this once.
        base_url: the address of the server.
    """

    name: str
    tokens_per_minute: int
    secret: str
    base_url: str


@dataclass(frozen=True)
class KnownKey:
    """An existing key, without its secret.

    Attributes:
        name: of a person or a program.
        tokens_per_minute: tokens of prompts and answers together.
        created: when, UTC.
    """

    name: str
    tokens_per_minute: int
    created: str


def add_key(settings: Settings, name: str, tokens_per_minute: int) -> NewKey:
    """Create a key.

    Raises:
        InputError: the name or the limit is not valid, or another key has the name.
        WorkError: the file of the keys cannot be read or written.
    """
    secret = create_secret()
    settings.installation().prepared()
    change = partial(
        api_key.add_key,
        name=name,
        tokens_per_minute=tokens_per_minute,
        secret=secret,
        now=time.time(),
    )
    api_key.update_keys(settings.home / KEYS_FILE, change)
    # What the `openai` package takes as its `base_url`.
    base_url = f"http://{LOOPBACK}:{settings.openai_port}/v1"
    return NewKey(name, tokens_per_minute, secret, base_url)


def revoke_key(settings: Settings, name: str) -> tuple[KnownKey, ...]:
    """Revoke a key, and return those that are left.

    Raises:
        InputError: there is none of this name.
        WorkError: the file of the keys cannot be read or written.
    """
    settings.installation().prepared()
    change = partial(api_key.revoke_key, name=name)
    return _describe_keys(api_key.update_keys(settings.home / KEYS_FILE, change))


def list_keys(settings: Settings) -> tuple[KnownKey, ...]:
    """Return the keys, without their secrets, which are not stored.

    Raises:
        WorkError: the file of the keys cannot be read.
    """
    return _describe_keys(api_key.read_keys(settings.home / KEYS_FILE))


def _describe_keys(keys: Sequence[ApiKey]) -> tuple[KnownKey, ...]:
    return tuple(
        KnownKey(
            each.name,
            each.tokens_per_minute,
            datetime.fromtimestamp(each.created_at, UTC).isoformat(timespec="seconds"),
        )
        for each in keys
    )


def show_new_key(key: NewKey) -> None:
    """Print the secret of a new key, and how it is used."""
    print_piece(f"{key.secret}\n")
    print_hint(
        f"{key.tokens_per_minute:,} tokens a minute; it is not shown again",
        label=f"key of {key.name}",
    )
    print_hint(f"OPENAI_BASE_URL={key.base_url} OPENAI_API_KEY=… for the openai package")


def show_keys(keys: Sequence[KnownKey]) -> None:
    """Print the keys that there are."""
    rows = [(key.name, f"{key.tokens_per_minute:,}", key.created) for key in keys]
    if not rows:
        rows = [("no keys", "make one with `millrace keys add NAME`", "")]
    print_table("API keys", ("name", "tokens a minute", "made"), rows)
