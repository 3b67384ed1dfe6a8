import json
import pickle

import pytest

from millrace.models.common.errors import (
    InputError,
    MillraceError,
    TransientError,
    WorkError,
    nearest,
)

KINDS = [MillraceError, InputError, WorkError, TransientError]


def test_a_message_has_a_line_for_each_value_that_is_known() -> None:
    error = InputError("the share is wrong", seen=1.5, valid="0 to 1", hint="lower it")
    assert str(error) == "the share is wrong\n  seen: 1.5\n  valid: 0 to 1\n  next: lower it"


def test_a_message_leaves_out_what_is_not_known() -> None:
    assert str(WorkError("it failed", hint="look")) == "it failed\n  next: look"


def test_a_seen_zero_is_shown() -> None:
    assert "seen: 0" in str(InputError("no rows", seen=0))


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_survives_pickling(kind: type[MillraceError]) -> None:
    error = kind("it failed", seen=[1], valid="2", hint="look")
    twin = pickle.loads(pickle.dumps(error))
    assert type(twin) is kind
    assert twin.as_dict() == error.as_dict()


@pytest.mark.parametrize(
    ("kind", "exit_code", "transient"),
    [(InputError, 2, False), (WorkError, 1, False), (TransientError, 1, True)],
)
def test_kinds_differ_in_exit_code_and_in_whether_to_try_again(
    kind: type[MillraceError], exit_code: int, transient: bool
) -> None:
    assert (kind.exit_code, kind.transient) == (exit_code, transient)


def test_an_error_is_json_ready() -> None:
    error = InputError("it failed", seen={"a": 1}, hint="look")
    assert json.loads(json.dumps(error.as_dict())) == {
        "error": "InputError",
        "what": "it failed",
        "seen": "{'a': 1}",
        "valid": None,
        "next": "look",
        "exit_code": 2,
    }


@pytest.mark.parametrize(("word", "hint"), [("mpl", "did you mean 'mlp'?"), ("zzzz", None)])
def test_the_nearest_known_word_is_a_hint(word: str, hint: str | None) -> None:
    assert nearest(word, ["mlp", "cnn"]) == hint
