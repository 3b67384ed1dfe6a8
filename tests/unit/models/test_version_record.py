"""The tags of a version that programs read, in one tag."""

import pytest

from millrace.models.registry.signing import COVERED_TAGS
from millrace.models.registry.version_record import RECORD_TAG, with_record, without_record

TAGS = {tag: f"of {tag}" for tag in (*COVERED_TAGS, "millrace.accuracy", "mine")}


def test_tags_are_read_as_they_were_given() -> None:
    stored = with_record(TAGS)
    assert without_record(stored) == TAGS
    assert set(stored) == {
        *("millrace.base", "millrace.candidate", "millrace.certificate", "millrace.dataset"),
        *("millrace.draft", "millrace.accuracy", "mine", RECORD_TAG),
    }


def test_tags_of_before_there_was_a_record_are_read() -> None:
    assert without_record(TAGS) == TAGS


def test_a_tag_beside_the_record_counts() -> None:
    stored = {**with_record(TAGS), "millrace.digest": "another"}
    assert without_record(stored) == {**TAGS, "millrace.digest": "another"}


@pytest.mark.parametrize(
    "record",
    ["", "{", "[]", "7", "null", "[" * 10_000, '{"digest": 7}', '{"certificate": "passed"}'],
)
def test_a_record_that_is_none_gives_no_tags(record: str) -> None:
    assert without_record({RECORD_TAG: record, "mine": "x"}) == {"mine": "x"}
