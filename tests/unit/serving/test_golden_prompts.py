"""How far the answers of a language model are from those certified."""

import pytest

from millrace.models.common.errors import WorkError
from millrace.serving.release.golden_prompts import GoldenPrompts, difference, same_words


def test_nothing_differs_from_itself() -> None:
    assert difference(("abc", "", "é"), ["abc", "", "é"]) == 0.0


@pytest.mark.parametrize(
    ("certified", "found", "share"),
    [
        (("abcd",), ["abxx"], 0.5),
        (("abcd", "abcd"), ["abcd", "xbcd"], 0.5),
        (("",), ["x"], 1.0),
        (("ab",), ["abcd"], 0.5),
        (("abcd",), [""], 1.0),
    ],
)
def test_an_answer_counts_from_where_it_parts(certified, found, share) -> None:
    assert difference(certified, found) == pytest.approx(share)


@pytest.mark.parametrize(("prompts", "answers"), [([], []), (["a", "b"], ["c"])])
def test_what_is_not_whole_is_refused(prompts, answers) -> None:
    golden = {"prompts": prompts, "answers": answers, "max_tokens": 4, "exact": True}
    with pytest.raises(WorkError, match="golden prompts and answers are incomplete"):
        GoldenPrompts.of(golden, None)


def test_an_answer_of_transformers_to_each_prompt_or_to_none() -> None:
    golden = {"prompts": ["a", "b"], "answers": ["c", "d"], "max_tokens": 4, "exact": True}
    assert GoldenPrompts.of(golden, None).transformers == ()
    with pytest.raises(WorkError, match="golden prompts and answers are incomplete"):
        GoldenPrompts.of({**golden, "transformers": ["c"]}, None)


@pytest.mark.parametrize(
    ("transformers", "found", "same"),
    [
        ("a b", "a b", True),
        ("a b", " a b", True),
        ("a \ufffd\ufffdb", "a \ufffdb", True),
        ("a b\ufffd", "a b", True),
        ("a b", "a  b", False),
        ("a b", "a b ", False),
    ],
)
def test_tokenizers_part_in_the_first_space_and_in_broken_bytes(
    transformers: str, found: str, same: bool
) -> None:
    assert same_words(transformers, found) is same
