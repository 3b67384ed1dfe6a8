"""API keys: pure changes, the file that keeps them, and who a secret belongs to."""

import stat
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from millrace.models.common.errors import InputError, WorkError
from millrace.serving.openai_api.api_key import (
    Key,
    added,
    from_json,
    new_secret,
    owner,
    revoked,
    to_json,
)
from millrace.serving.openai_api.api_key_file import LOOK_SECONDS, KeyFile, change, read

NOW = 1_790_000_000.5


def two() -> tuple[tuple[Key, ...], str, str]:
    first, second = new_secret(), new_secret()
    keys = added((), "anna", 100, secret=first, now=NOW)
    return added(keys, "bob@work", 7, secret=second, now=NOW), first, second


def test_a_secret_finds_its_key_and_no_other() -> None:
    keys, first, second = two()
    assert owner(keys, first) == keys[0]
    assert owner(keys, second) == keys[1]
    for wrong in ("", first[:-1], first + "x", second.upper(), keys[0].digest, "\udcff é"):
        assert owner(keys, wrong) is None


def test_secrets_are_long_and_never_the_same() -> None:
    made = {new_secret() for _ in range(100)}
    assert len(made) == 100
    assert all(each.startswith("mr-") and len(each) == 46 for each in made)


def test_a_file_holds_no_secret_and_gives_the_keys_back() -> None:
    keys, first, second = two()
    text = to_json(keys)
    assert from_json(text) == keys
    assert first not in text
    assert second not in text
    assert keys[0].created_at == 1_790_000_000


def test_a_revoked_key_is_gone_and_its_name_free() -> None:
    keys, first, second = two()
    left = revoked(keys, "anna")
    assert owner(left, first) is None
    assert owner(left, second) == keys[1]
    assert [key.name for key in added(left, "anna", 1, secret="x", now=0)] == ["bob@work", "anna"]


def test_what_is_not_there_is_not_revoked() -> None:
    keys, *_ = two()
    with pytest.raises(InputError, match="did you mean 'anna'") as refused:
        revoked(keys, "ana")
    assert refused.value.valid == "anna, bob@work"


@pytest.mark.parametrize("name", ["", " x", "a b", "a\nb", "x" * 65, "é", "-x"])
def test_names_are_plain(name) -> None:
    with pytest.raises(InputError, match="name of an API key"):
        added((), name, 1, secret="x", now=0)


@pytest.mark.parametrize("limit", [0, -1, 1.5, True])
def test_limits_are_whole_and_above_0(limit) -> None:
    with pytest.raises(InputError, match="tokens_per_minute of the key x"):
        added((), "x", limit, secret="x", now=0)


def test_two_keys_have_two_names() -> None:
    keys, *_ = two()
    with pytest.raises(InputError, match="there is an API key of this name"):
        added(keys, "anna", 1, secret="x", now=0)


@pytest.mark.parametrize("text", ["", "[]", '{"keys": [{}]}', '{"keys": [1]}', "{", '{"keys": 1}'])
def test_what_is_no_file_of_keys_is_told(text) -> None:
    with pytest.raises(WorkError, match="API keys cannot be read"):
        from_json(text)


def test_a_file_that_is_not_there_has_no_keys(tmp_path: Path) -> None:
    assert read(tmp_path / "keys.json") == ()


def test_the_file_is_private_and_open_ones_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    kept = change(path, partial(added, name="anna", tokens_per_minute=1, secret="x", now=0))
    assert read(path) == kept
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o640)
    with pytest.raises(WorkError, match="mode 0640"):
        read(path)


def test_changes_at_once_lose_no_key(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"

    def add(number: int) -> None:
        name, secret = f"key{number}", new_secret()
        change(path, lambda keys: added(keys, name, 1, secret=secret, now=0))

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(add, range(40)))
    assert {key.name for key in read(path)} == {f"key{number}" for number in range(40)}
    assert {each.name for each in tmp_path.iterdir()} == {"keys.json", ".keys.json.lock"}


def test_changes_of_the_file_are_seen_a_second_later(tmp_path: Path) -> None:
    path, now = tmp_path / "keys.json", [0.0]
    keys = KeyFile(path, lambda: now[0])
    assert keys.now() == ()
    change(path, partial(added, name="anna", tokens_per_minute=1, secret="x", now=0))
    assert keys.now() == ()
    now[0] += LOOK_SECONDS
    assert [key.name for key in keys.now()] == ["anna"]
    assert keys.now() is keys.now()
    change(path, partial(revoked, name="anna"))
    now[0] += LOOK_SECONDS
    assert keys.now() == ()


def test_a_file_that_went_bad_lets_nobody_in(tmp_path: Path) -> None:
    path, now = tmp_path / "keys.json", [0.0]
    change(path, partial(added, name="anna", tokens_per_minute=1, secret="x", now=0))
    keys = KeyFile(path, lambda: now[0])
    assert len(keys.now()) == 1
    path.write_text("{")
    now[0] += LOOK_SECONDS
    for _ in range(2):
        with pytest.raises(WorkError, match="cannot be read"):
            keys.now()
    path.unlink()
    assert keys.now() == ()
