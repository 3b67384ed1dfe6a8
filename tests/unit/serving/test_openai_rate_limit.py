"""Tokens per minute, with a clock that is given."""

import pytest

from millrace.serving.openai_api.api_key import ApiKey
from millrace.serving.openai_api.error_response import ApiError
from millrace.serving.openai_api.rate_limit import RateLimiter, TokenBucket, estimate_tokens
from millrace.serving.triton.streams.stream_request import Piece

KEY = ApiKey("anna", "a" * 64, 60, 0)
OTHER = ApiKey("bob", "b" * 64, 60, 0)
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
def limiter(clock: Clock) -> RateLimiter:
    return RateLimiter(clock)


def piece(input_tokens: int, *output_tokens: int) -> Piece:
    count = len(output_tokens)
    return Piece(("",) * count, ("",) * count, input_tokens, output_tokens, is_last=False)


def level(limiter: RateLimiter, key: ApiKey, clock: Clock) -> float:
    bucket = limiter.bucket(key)
    bucket.refill(clock())
    return bucket.level


def test_a_bucket_fills_steadily_and_not_over() -> None:
    bucket = TokenBucket(capacity=120, level=0, updated_at=10)
    bucket.refill(20)
    assert bucket.level == 20
    bucket.refill(15)
    assert (bucket.level, bucket.updated_at) == (20, 20), "a clock that goes back brings nothing"
    bucket.refill(1e6)
    assert bucket.level == 120


def test_a_bucket_tells_how_long_to_wait() -> None:
    bucket = TokenBucket(capacity=60, level=10, updated_at=0)
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
    bucket = TokenBucket(capacity=60, level=10, updated_at=0)
    bucket.resize(100)
    assert (bucket.level, bucket.capacity) == (50, 100)
    bucket.resize(20)
    assert bucket.level == -30


def test_an_estimate_counts_characters_and_messages() -> None:
    assert estimate_tokens("") == 0
    assert estimate_tokens("abcde") == 2
    assert (
        estimate_tokens([{"role": "user", "content": "abcde"}, {"role": "user", "content": ""}])
        == 10
    )


def test_requests_at_once_do_not_get_in_by_the_same_tokens(limiter, clock) -> None:
    with limiter.charge(KEY, [FORTY]):
        assert level(limiter, KEY, clock) == 20
        with pytest.raises(ApiError) as refused, limiter.charge(KEY, [FORTY]):
            pass
    assert refused.value.status == 429
    assert refused.value.response().headers["retry-after"] == "20"
    assert refused.value.code == "rate_limit_exceeded"
    with limiter.charge(OTHER, [FORTY]):
        pass
    clock.now += 20
    with limiter.charge(KEY, [FORTY]):
        pass


def test_the_first_piece_puts_the_estimate_right_and_output_is_taken_as_it_comes(
    limiter, clock
) -> None:
    with limiter.charge(KEY, [FORTY]) as charge:
        charge.count_piece(0, piece(30, 1))
        assert level(limiter, KEY, clock) == 60 - 30 - 1
        charge.count_piece(0, piece(30, 4))
        assert level(limiter, KEY, clock) == 60 - 30 - 5
    assert level(limiter, KEY, clock) == 25


def test_what_answers_may_have_is_taken_at_once_and_comes_back(limiter, clock) -> None:
    with limiter.charge(KEY, ["x" * 40], output=30) as charge:
        assert level(limiter, KEY, clock) == 60 - 10 - 30
        with pytest.raises(ApiError), limiter.charge(KEY, ["x" * 40], output=30):
            pass
        charge.count_piece(0, piece(10, 8))
        assert level(limiter, KEY, clock) == 20
    assert level(limiter, KEY, clock) == 60 - 10 - 8


def test_answers_that_may_exceed_the_limit_wait_for_a_full_bucket(limiter, clock) -> None:
    with limiter.charge(KEY, ["x" * 40], output=3200) as charge:
        assert level(limiter, KEY, clock) == 0
        with pytest.raises(ApiError, match="Try again in 60 s"):
            limiter.check(KEY, 3210)
        charge.count_piece(0, piece(10, 55))
        assert level(limiter, KEY, clock) == -5
    assert level(limiter, KEY, clock) == -5


def test_a_request_that_failed_keeps_nothing_of_its_answers(limiter, clock) -> None:
    with pytest.raises(ApiError, match="away"), limiter.charge(KEY, [FORTY], output=15):
        raise ApiError(503, "away")
    assert level(limiter, KEY, clock) == 60


def test_every_prompt_and_every_answer_counts(limiter, clock) -> None:
    with limiter.charge(KEY, ["x" * 40, "x" * 80]) as charge:
        assert level(limiter, KEY, clock) == 30
        charge.count_piece(1, piece(5, 2, 3))
        charge.count_piece(0, piece(7, 1, 1))
    assert level(limiter, KEY, clock) == 60 - 5 - 7 - 5 - 2


def test_an_answer_may_leave_a_debt_that_the_next_request_waits_for(limiter, clock) -> None:
    with limiter.charge(KEY, ["x"]) as charge:
        charge.count_piece(0, piece(10, 110))
    assert level(limiter, KEY, clock) == -60
    with pytest.raises(ApiError, match="Try again in 61 s"):
        limiter.check(KEY, 1)
    clock.now += 61
    limiter.check(KEY, 1)


def test_a_prompt_that_got_no_answer_costs_nothing(limiter, clock) -> None:
    def answer_one() -> None:
        with limiter.charge(KEY, [FORTY, "x" * 40]) as charge:
            charge.count_piece(1, piece(9, 1))
            raise ApiError(503, "away")

    with pytest.raises(ApiError, match="away"):
        answer_one()
    assert level(limiter, KEY, clock) == 50


def test_a_client_that_left_has_paid_for_its_prompt(limiter, clock) -> None:
    with pytest.raises(GeneratorExit), limiter.charge(KEY, [FORTY]):
        raise GeneratorExit
    assert level(limiter, KEY, clock) == 20


def test_a_prompt_larger_than_the_limit_waits_for_a_full_bucket(limiter, clock) -> None:
    with limiter.charge(KEY, [FORTY * 10]):
        assert level(limiter, KEY, clock) == 60 - 400
    with pytest.raises(ApiError, match="Try again in 400 s"), limiter.charge(KEY, [FORTY * 10]):
        pass


def test_a_key_that_went_takes_its_bucket_along(limiter, clock) -> None:
    with limiter.charge(KEY, [FORTY]), limiter.charge(OTHER, [FORTY]):
        pass
    limiter.retain([OTHER])
    assert level(limiter, KEY, clock) == 60
    assert level(limiter, OTHER, clock) == 20
