"""API keys: pure changes, the file that keeps them, and who a secret belongs to."""

import stat
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from millrace.models.common.errors import InputError, WorkError
from millrace.serving.openai_api.api_key import (
    REFRESH_SECONDS,
    ApiKey,
    KeyFile,
    add_key,
    create_secret,
    find_owner,
    parse_keys,
    read_keys,
    revoke_key,
    serialize_keys,
    update_keys,
)

NOW = 1_790_000_000.5


def two() -> tuple[tuple[ApiKey, ...], str, str]:
    first, second = create_secret(), create_secret()
    keys = add_key((), "anna", 100, secret=first, now=NOW)
    return add_key(keys, "bob@work", 7, secret=second, now=NOW), first, second


def test_a_secret_finds_its_key_and_no_other() -> None:
    keys, first, second = two()
    assert find_owner(keys, first) == keys[0]
    assert find_owner(keys, second) == keys[1]
    for wrong in ("", first[:-1], first + "x", second.upper(), keys[0].digest, "\udcff é"):
        assert find_owner(keys, wrong) is None


def test_secrets_are_long_and_never_the_same() -> None:
    made = {create_secret() for _ in range(100)}
    assert len(made) == 100
    assert all(each.startswith("mr-") and len(each) == 46 for each in made)


def test_a_file_holds_no_secret_and_gives_the_keys_back() -> None:
    keys, first, second = two()
    text = serialize_keys(keys)
    assert parse_keys(text) == keys
    assert first not in text
    assert second not in text
    assert keys[0].created_at == 1_790_000_000


def test_a_revoked_key_is_gone_and_its_name_free() -> None:
    keys, first, second = two()
    left = revoke_key(keys, "anna")
    assert find_owner(left, first) is None
    assert find_owner(left, second) == keys[1]
    assert [key.name for key in add_key(left, "anna", 1, secret="x", now=0)] == ["bob@work", "anna"]


def test_what_is_not_there_is_not_revoked() -> None:
    keys, *_ = two()
    with pytest.raises(InputError, match="did you mean 'anna'") as refused:
        revoke_key(keys, "ana")
    assert refused.value.valid == "anna, bob@work"


@pytest.mark.parametrize("name", ["", " x", "a b", "a\nb", "x" * 65, "é", "-x"])
def test_names_are_plain(name) -> None:
    with pytest.raises(InputError, match="name of an API key"):
        add_key((), name, 1, secret="x", now=0)


@pytest.mark.parametrize("limit", [0, -1, 1.5, True])
def test_limits_are_whole_and_above_0(limit) -> None:
    with pytest.raises(InputError, match="tokens_per_minute of the key x"):
        add_key((), "x", limit, secret="x", now=0)


def test_two_keys_have_two_names() -> None:
    keys, *_ = two()
    with pytest.raises(InputError, match="an API key with this name already exists"):
        add_key(keys, "anna", 1, secret="x", now=0)


@pytest.mark.parametrize("text", ["", "[]", '{"keys": [{}]}', '{"keys": [1]}', "{", '{"keys": 1}'])
def test_what_is_no_file_of_keys_is_told(text) -> None:
    with pytest.raises(WorkError, match="API keys cannot be read"):
        parse_keys(text)


def test_a_file_that_is_not_there_has_no_keys(tmp_path: Path) -> None:
    assert read_keys(tmp_path / "keys.json") == ()


def test_the_file_is_private_and_open_ones_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    kept = update_keys(path, partial(add_key, name="anna", tokens_per_minute=1, secret="x", now=0))
    assert read_keys(path) == kept
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o640)
    with pytest.raises(WorkError, match="mode 0640"):
        read_keys(path)


def test_changes_at_once_lose_no_key(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"

    def add(number: int) -> None:
        name, secret = f"key{number}", create_secret()
        update_keys(path, lambda keys: add_key(keys, name, 1, secret=secret, now=0))

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(add, range(40)))
    assert {key.name for key in read_keys(path)} == {f"key{number}" for number in range(40)}
    assert {each.name for each in tmp_path.iterdir()} == {"keys.json", ".keys.json.lock"}


def test_changes_of_the_file_are_seen_a_second_later(tmp_path: Path) -> None:
    path, now = tmp_path / "keys.json", [0.0]
    keys = KeyFile(path, lambda: now[0])
    assert keys.read_current() == ()
    update_keys(path, partial(add_key, name="anna", tokens_per_minute=1, secret="x", now=0))
    assert keys.read_current() == ()
    now[0] += REFRESH_SECONDS
    assert [key.name for key in keys.read_current()] == ["anna"]
    assert keys.read_current() is keys.read_current()
    update_keys(path, partial(revoke_key, name="anna"))
    now[0] += REFRESH_SECONDS
    assert keys.read_current() == ()


def test_a_file_that_went_bad_lets_nobody_in(tmp_path: Path) -> None:
    path, now = tmp_path / "keys.json", [0.0]
    update_keys(path, partial(add_key, name="anna", tokens_per_minute=1, secret="x", now=0))
    keys = KeyFile(path, lambda: now[0])
    assert len(keys.read_current()) == 1
    path.write_text("{")
    now[0] += REFRESH_SECONDS
    for _ in range(2):
        with pytest.raises(WorkError, match="cannot be read"):
            keys.read_current()
    path.unlink()
    assert keys.read_current() == ()
