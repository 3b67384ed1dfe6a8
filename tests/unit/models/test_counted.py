import pytest

from millrace.models.common.counted import counted


@pytest.mark.parametrize(
    ("number", "words"), [(0, "0 rows"), (1, "1 row"), (2, "2 rows"), (2500, "2,500 rows")]
)
def test_a_noun_is_in_the_singular_for_one(number: int, words: str) -> None:
    assert counted(number, "row") == words
