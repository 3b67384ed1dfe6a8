"""`millrace keys`: who may use the OpenAI-compatible server, and how much."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from millrace.flows.cli.command_setup import AsJson, load_settings
from millrace.flows.console import print_hint, print_json, print_piece, print_table
from millrace.serving.openai_api import api_key
from millrace.serving.openai_api.api_key import KEYS_FILE, ApiKey, create_secret

if TYPE_CHECKING:
    from millrace.flows.settings import Settings

keys = typer.Typer(
    help="API keys of the OpenAI-compatible server: add, list, revoke.", no_args_is_help=True
)


@keys.command("add")
def add(
    name: Annotated[str, typer.Argument(help="The person or program that owns the key.")],
    tokens_per_minute: Annotated[
        int, typer.Option(min=1, help="Limit on prompt and answer tokens together.")
    ] = 60_000,
    as_json: AsJson = False,
) -> None:
    """Create a key, and print its secret, which is not shown again."""
    key = add_key(load_settings(), name, tokens_per_minute)
    print_json(key) if as_json else show_new_key(key)


@keys.command("list")
def list_(as_json: AsJson = False) -> None:
    """Print the names and the limits of the keys."""
    known = list_keys(load_settings())
    print_json(known) if as_json else show_keys(known)


@keys.command("revoke")
def revoke(
    name: Annotated[str, typer.Argument(help="The key's name.")], as_json: AsJson = False
) -> None:
    """Revoke a key; the server refuses it within a second."""
    left = revoke_key(load_settings(), name)
    print_json(left) if as_json else show_keys(left)


@dataclass(frozen=True)
class NewKey:
    """A key that was just created.

    Attributes:
        name: the person or program that owns the key.
        tokens_per_minute: the limit on prompt and answer tokens together.
        secret: the secret that the owner sends; it is shown only once.
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
        name: the person or program that owns the key.
        tokens_per_minute: the limit on prompt and answer tokens together.
        created: the time of creation, ISO 8601 in UTC.
    """

    name: str
    tokens_per_minute: int
    created: str


def add_key(settings: "Settings", name: str, tokens_per_minute: int) -> NewKey:
    """Create a key.

    Raises:
        InputError: the name or the limit is not valid, or another key has the name.
        WorkError: the key file cannot be read or written.
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
    # The `base_url` argument of the `openai` package.
    from millrace.flows.settings import LOOPBACK

    base_url = f"http://{LOOPBACK}:{settings.openai_port}/v1"
    return NewKey(name, tokens_per_minute, secret, base_url)


def revoke_key(settings: "Settings", name: str) -> tuple[KnownKey, ...]:
    """Revoke a key, and return the remaining keys.

    Raises:
        InputError: there is no key of this name.
        WorkError: the key file cannot be read or written.
    """
    settings.installation().prepared()
    change = partial(api_key.revoke_key, name=name)
    return _describe_keys(api_key.update_keys(settings.home / KEYS_FILE, change))


def list_keys(settings: "Settings") -> tuple[KnownKey, ...]:
    """Return the keys without their secrets, because secrets are not stored.

    Raises:
        WorkError: the key file cannot be read.
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
    """Print the secret of a new key, and how to use it."""
    print_piece(f"{key.secret}\n")
    print_hint(
        f"{key.tokens_per_minute:,} tokens a minute; the secret is not shown again",
        label=f"key of {key.name}",
    )
    print_hint(f"OPENAI_BASE_URL={key.base_url} OPENAI_API_KEY=… for the openai package")


def show_keys(keys: Sequence[KnownKey]) -> None:
    """Print the existing keys."""
    rows = [(key.name, f"{key.tokens_per_minute:,}", key.created) for key in keys]
    if not rows:
        rows = [("no keys", "create one with `millrace keys add NAME`", "")]
    print_table("API keys", ("name", "tokens a minute", "made"), rows)
