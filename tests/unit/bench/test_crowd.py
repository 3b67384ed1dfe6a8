import pytest

from bench.crowd import Crowd, Passages, repeat_to


def test_no_passage_is_taken_twice() -> None:
    passages = Passages("abcdefgh", 2, prefix="> ")
    assert passages.take(2) == ["> ab", "> cd"]
    assert passages.take(2) == ["> ef", "> gh"]
    with pytest.raises(ValueError, match="10 characters are asked of a text of 8"):
        passages.take(1)
    passages.rewind()
    assert passages.take(1) == ["> ab"]


def test_times_to_the_first_token_are_those_of_all_streams_but_the_first_times() -> None:
    crowd = Crowd(None, "m", Passages("", 1), streams=2, tokens=[1])
    crowd.first_s = [[9.0, 9.0], [0.001, 0.002], [0.003, 0.004]]
    assert crowd.first_ms(0.5) == pytest.approx(2.5)
    assert crowd.first_ms(1.0) == pytest.approx(4.0)


def test_answers_have_their_lengths_in_turn() -> None:
    assert repeat_to((16, 128, 32), 5) == [16, 128, 32, 16, 128]
