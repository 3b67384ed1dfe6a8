"""Tokens per minute, with a clock that is given."""

import pytest

from millrace.serving.openai_api.api_key import Key
from millrace.serving.openai_api.error_response import Refusal
from millrace.serving.openai_api.rate_limit import Allowances, Bucket, estimate
from millrace.serving.triton.language.stream_request import Piece

KEY = Key("anna", "a" * 64, 60, 0)
OTHER = Key("bob", "b" * 64, 60, 0)
FORTY = "x" * 160
"""A prompt of about 40 tokens."""


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def allowances(clock: Clock) -> Allowances:
    return Allowances(clock)


def piece(input_tokens: int, *output_tokens: int) -> Piece:
    count = len(output_tokens)
    return Piece(("",) * count, ("",) * count, input_tokens, output_tokens, is_last=False)


def level(allowances: Allowances, key: Key, clock: Clock) -> float:
    bucket = allowances.bucket(key)
    bucket.refill(clock())
    return bucket.level


def test_a_bucket_fills_steadily_and_not_over() -> None:
    bucket = Bucket(capacity=120, level=0, at=10)
    bucket.refill(20)
    assert bucket.level == 20
    bucket.refill(15)
    assert (bucket.level, bucket.at) == (20, 20), "a clock that goes back brings nothing"
    bucket.refill(1e6)
    assert bucket.level == 120


def test_a_bucket_tells_how_long_to_wait() -> None:
    bucket = Bucket(capacity=60, level=10, at=0)
    assert bucket.seconds_until(10, 0) == 0
    assert bucket.seconds_until(25, 0) == 15
    assert bucket.seconds_until(25, 14) == 1
    assert bucket.seconds_until(10_000, 14) == 36, (
        "what is more than it holds waits until it is full"
    )
    bucket.take(80, 14)
    assert bucket.level == -56
    assert bucket.seconds_until(1, 14) == 57


def test_a_new_limit_keeps_what_was_used() -> None:
    bucket = Bucket(capacity=60, level=10, at=0)
    bucket.resize(100)
    assert (bucket.level, bucket.capacity) == (50, 100)
    bucket.resize(20)
    assert bucket.level == -30


def test_an_estimate_counts_characters_and_messages() -> None:
    assert estimate("") == 0
    assert estimate("abcde") == 2
    assert estimate([{"role": "user", "content": "abcde"}, {"role": "user", "content": ""}]) == 10


def test_requests_at_once_do_not_get_in_by_the_same_tokens(allowances, clock) -> None:
    with allowances.charged(KEY, [FORTY]):
        assert level(allowances, KEY, clock) == 20
        with pytest.raises(Refusal) as refused, allowances.charged(KEY, [FORTY]):
            pass
    assert (refused.value.status, refused.value.headers()) == (429, {"retry-after": "20"})
    assert refused.value.code == "rate_limit_exceeded"
    with allowances.charged(OTHER, [FORTY]):
        pass
    clock.now += 20
    with allowances.charged(KEY, [FORTY]):
        pass


def test_the_first_piece_puts_the_estimate_right_and_output_is_taken_as_it_comes(
    allowances, clock
) -> None:
    with allowances.charged(KEY, [FORTY]) as charge:
        charge.hear(0, piece(30, 1))
        assert level(allowances, KEY, clock) == 60 - 30 - 1
        charge.hear(0, piece(30, 4))
        assert level(allowances, KEY, clock) == 60 - 30 - 5
    assert level(allowances, KEY, clock) == 25


def test_what_answers_may_have_is_taken_at_once_and_comes_back(allowances, clock) -> None:
    with allowances.charged(KEY, ["x" * 40], output=30) as charge:
        assert level(allowances, KEY, clock) == 60 - 10 - 30
        with pytest.raises(Refusal), allowances.charged(KEY, ["x" * 40], output=30):
            pass
        charge.hear(0, piece(10, 8))
        assert level(allowances, KEY, clock) == 20
    assert level(allowances, KEY, clock) == 60 - 10 - 8


def test_answers_that_may_exceed_the_limit_wait_for_a_full_bucket(allowances, clock) -> None:
    with allowances.charged(KEY, ["x" * 40], output=3200) as charge:
        assert level(allowances, KEY, clock) == 0
        with pytest.raises(Refusal, match="Try again in 60 s"):
            allowances.check(KEY, 3210)
        charge.hear(0, piece(10, 55))
        assert level(allowances, KEY, clock) == -5
    assert level(allowances, KEY, clock) == -5


def test_a_request_that_failed_keeps_nothing_of_its_answers(allowances, clock) -> None:
    with pytest.raises(Refusal, match="away"), allowances.charged(KEY, [FORTY], output=15):
        raise Refusal(503, "away")
    assert level(allowances, KEY, clock) == 60


def test_every_prompt_and_every_answer_counts(allowances, clock) -> None:
    with allowances.charged(KEY, ["x" * 40, "x" * 80]) as charge:
        assert level(allowances, KEY, clock) == 30
        charge.hear(1, piece(5, 2, 3))
        charge.hear(0, piece(7, 1, 1))
    assert level(allowances, KEY, clock) == 60 - 5 - 7 - 5 - 2


def test_an_answer_may_leave_a_debt_that_the_next_request_waits_for(allowances, clock) -> None:
    with allowances.charged(KEY, ["x"]) as charge:
        charge.hear(0, piece(10, 110))
    assert level(allowances, KEY, clock) == -60
    with pytest.raises(Refusal, match="Try again in 61 s"):
        allowances.check(KEY, 1)
    clock.now += 61
    allowances.check(KEY, 1)


def test_a_prompt_that_got_no_answer_costs_nothing(allowances, clock) -> None:
    def answer_one() -> None:
        with allowances.charged(KEY, [FORTY, "x" * 40]) as charge:
            charge.hear(1, piece(9, 1))
            raise Refusal(503, "away")

    with pytest.raises(Refusal, match="away"):
        answer_one()
    assert level(allowances, KEY, clock) == 50


def test_a_client_that_left_has_paid_for_its_prompt(allowances, clock) -> None:
    with pytest.raises(GeneratorExit), allowances.charged(KEY, [FORTY]):
        raise GeneratorExit
    assert level(allowances, KEY, clock) == 20


def test_a_prompt_larger_than_the_limit_waits_for_a_full_bucket(allowances, clock) -> None:
    with allowances.charged(KEY, [FORTY * 10]):
        assert level(allowances, KEY, clock) == 60 - 400
    with pytest.raises(Refusal, match="Try again in 400 s"), allowances.charged(KEY, [FORTY * 10]):
        pass


def test_a_key_that_went_takes_its_bucket_along(allowances, clock) -> None:
    with allowances.charged(KEY, [FORTY]), allowances.charged(OTHER, [FORTY]):
        pass
    allowances.keep([OTHER])
    assert level(allowances, KEY, clock) == 60
    assert level(allowances, OTHER, clock) == 20
