import json
import stat
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from millrace.models.common.errors import InputError, WorkError
from millrace.models.registry.signing import (
    COVERED_TAGS,
    SIGNATURE_TAG,
    SigningKeys,
    Trust,
    fault_of_signature,
    statement,
)
from millrace.models.registry.version_files import ModelVersion

TAGS = {
    "millrace.digest": "a" * 64,
    "millrace.evidence": "b" * 64,
    "millrace.kind": "graph",
    "millrace.draft": "small/1",
}
VERSION = ModelVersion("digits", 3, "a" * 64, "run", tags=TAGS, source="models:/m-1")


@pytest.fixture
def keys(tmp_path: Path) -> SigningKeys:
    return SigningKeys(tmp_path)


def signed(version: ModelVersion, keys: SigningKeys) -> ModelVersion:
    return replace(version, tags={**version.tags, SIGNATURE_TAG: keys.sign(version)})


def test_a_signed_version_is_trusted_and_one_without_a_signature_is_not(keys: SigningKeys) -> None:
    assert Trust(keys).require(signed(VERSION, keys)) == ""
    with pytest.raises(InputError, match="digits version 3 is not trusted: it is not signed"):
        Trust(keys).require(VERSION)


@pytest.mark.parametrize(
    "change",
    [
        {"model": "others"},
        {"version": 4},
        {"run_id": "another"},
        {"source": "models:/m-2"},
        *({"tags": {tag: "x"}} for tag in COVERED_TAGS),
    ],
    ids=str,
)
def test_a_signature_is_of_one_version_with_its_files_and_tags(
    keys: SigningKeys, change: dict[str, object]
) -> None:
    version = signed(VERSION, keys)
    if "tags" in change:
        assert isinstance(change["tags"], dict)
        change = {"tags": {**version.tags, **change["tags"]}}
    fault = fault_of_signature(replace(version, **change), keys.trusted())  # type: ignore[arg-type]
    assert fault is not None
    assert "for something else" in fault


def test_tags_that_change_later_are_not_covered(keys: SigningKeys) -> None:
    version = signed(VERSION, keys)
    later = {**version.tags, "millrace.status": "live", "millrace.approved_by": "bob"}
    assert fault_of_signature(replace(version, tags=later), keys.trusted()) is None


def test_a_statement_is_canonical() -> None:
    backwards = replace(VERSION, tags=dict(reversed(TAGS.items())))
    assert statement(backwards) == statement(VERSION)
    assert json.loads(statement(VERSION))["tags"] == TAGS


@pytest.mark.parametrize("value", ["x", "v2.a.b.c", "v1.a.b", "v2..", "v2.é.b"])
def test_a_signature_that_cannot_be_read_is_none(keys: SigningKeys, value: str) -> None:
    version = replace(VERSION, tags={**TAGS, SIGNATURE_TAG: value})
    assert fault_of_signature(version, keys.trusted()) is not None
    # nor where somebody trusts what is no key
    assert fault_of_signature(version, {value.split(".")[1]} if "." in value else ()) is not None


def test_the_key_of_another_home_is_trusted_when_it_is_listed(tmp_path: Path) -> None:
    own, other = SigningKeys(tmp_path / "own"), SigningKeys(tmp_path / "other")
    version = signed(VERSION, other)
    fault = Trust(own).fault(version)
    assert fault is not None
    assert other.public in fault
    assert own.public  # makes the home
    own.trusted_file.write_text(f"# colleagues\n{other.public} the training machine\n")
    assert Trust(own).fault(version) is None
    own.trusted_file.unlink()
    assert Trust(replace(own, others=(other.public,))).fault(version) is None


def test_the_key_is_private_and_the_same_for_all_who_ask_at_once(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(lambda _: SigningKeys(tmp_path).public, range(16)))
    assert len(found) == 1
    assert stat.S_IMODE((tmp_path / "signing.key").stat().st_mode) == 0o600
    assert (tmp_path / "signing.pub").read_text().split()[0] in found
    assert {file.name for file in tmp_path.iterdir()} == {"signing.key", "signing.pub"}


def test_a_damaged_key_is_told_and_not_replaced(keys: SigningKeys) -> None:
    keys.private_file.write_text("damaged")
    with pytest.raises(WorkError, match="signing key"):
        keys.sign(VERSION)
    assert keys.private_file.read_text() == "damaged"


def test_what_was_live_before_the_home_had_a_key_may_come_back(keys: SigningKeys) -> None:
    keys.made(lambda: [("digits", 3, "a" * 64)])
    assert Trust(keys).fault(VERSION) is None
    assert Trust(keys).fault(replace(VERSION, version=4)) is not None
    assert Trust(keys).fault(replace(VERSION, digest="c" * 64)) is not None


def test_what_is_live_later_does_not_join_it(keys: SigningKeys) -> None:
    keys.made(list)
    keys.made(lambda: [("digits", 3, "a" * 64)])
    assert Trust(keys).fault(VERSION) is not None


def test_only_a_file_of_the_homes_owner_does_without_a_signature(
    keys: SigningKeys, tmp_path: Path
) -> None:
    file = tmp_path / "digits.yaml"
    text = "name: {}\ndataset: {{source: x.csv, target: y}}\n"
    text += "promotion: {{require: {{signed: false}}}}\n"
    file.write_text(text.format("another"))
    with pytest.raises(InputError):
        Trust(keys, lambda: (file,)).require(VERSION)
    file.write_text(text.format("digits"))
    told = Trust(keys, lambda: (file,)).require(VERSION)
    assert told == "it is not signed, but it is used, because promotion.require.signed is false"
