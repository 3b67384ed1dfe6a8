"""Tokens per minute: a token bucket for each API key, and what a request takes from it.

A bucket holds the tokens of one minute and fills steadily. A request is admitted when the bucket
has the estimated tokens of its prompts and the most that its answers may have, or is full. These
are reserved at once, so that requests sent together do not share the same tokens. The first piece
of an answer says how long the prompt is; what the answers did not need is returned when all have
ended. A request that was admitted is never cut off: it may leave a debt, which the key's next
request waits for. Buckets are lost when the process ends.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from millrace.serving.openai_api.api_key import ApiKey
from millrace.serving.openai_api.error_response import ApiError
from millrace.serving.triton.streams.stream_request import Messages, Piece

SECONDS = 60.0
CHARACTERS = 4
"""For each token of a prompt, estimated."""
MESSAGE_TOKENS = 4
"""That a chat template puts around a message, estimated."""


@dataclass
class TokenBucket:
    """Tokens that may be used.

    Attributes:
        capacity: the most that it holds, and what is added in a minute.
        level: what it holds now; below 0 in debt.
        updated_at: seconds of the clock at which it had this level.
    """

    capacity: int
    level: float
    updated_at: float

    def refill(self, now: float) -> None:
        """Add what has come since the last update."""
        passed = max(0.0, now - self.updated_at)
        self.level = min(self.capacity, self.level + passed * self.capacity / SECONDS)
        self.updated_at = max(self.updated_at, now)

    def resize(self, capacity: int) -> None:
        """Change the capacity; what was used stays used."""
        self.level += capacity - self.capacity
        self.capacity = capacity

    def seconds_until(self, tokens: int, now: float) -> float:
        """Return how long until it has so many tokens, or is full; 0 if it has."""
        self.refill(now)
        missing = min(tokens, self.capacity) - self.level
        return max(0.0, missing * SECONDS / self.capacity)

    def take(self, tokens: int, now: float) -> None:
        """Take tokens, into debt if need be; a negative number returns them."""
        self.refill(now)
        self.level = min(self.capacity, self.level - tokens)


def estimate_tokens(prompt: str | Messages) -> int:
    """Return about how many tokens a prompt has."""
    if isinstance(prompt, str):
        return math.ceil(len(prompt) / CHARACTERS)
    texts = sum(math.ceil(len(message["content"]) / CHARACTERS) for message in prompt)
    return texts + MESSAGE_TOKENS * len(prompt)


class Charge:
    """What one request takes from a bucket.

    Args:
        bucket: of its key.
        estimates: tokens of each prompt.
        output: tokens that all answers together may have; what the bucket cannot hold beside the
            prompts is not reserved.
        clock: monotonic seconds.
    """

    def __init__(
        self, bucket: TokenBucket, estimates: Sequence[int], output: int, clock: Callable[[], float]
    ) -> None:
        self._bucket, self._clock = bucket, clock
        self._estimates = dict(enumerate(estimates))
        self._output = max(0, min(output, bucket.capacity - sum(estimates)))
        bucket.take(sum(estimates) + self._output, clock())

    def count_piece(self, prompt: int, piece: Piece) -> None:
        """Note the usage that a piece of the answer to one of the prompts reports."""
        input_tokens = piece.input_tokens - self._estimates.pop(prompt, piece.input_tokens)
        output_tokens = sum(piece.output_tokens)
        taken = min(output_tokens, self._output)
        self._output -= taken
        self._bucket.take(input_tokens + output_tokens - taken, self._clock())

    def return_output(self) -> None:
        """Return the reserved tokens that the answers did not need."""
        self._bucket.take(-self._output, self._clock())
        self._output = 0

    def return_prompts(self) -> None:
        """Return the estimated tokens of the prompts that got no answer."""
        self._bucket.take(-sum(self._estimates.values()), self._clock())
        self._estimates.clear()


class RateLimiter:
    """The buckets of all keys.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._buckets: dict[str, TokenBucket] = {}

    def bucket(self, key: ApiKey) -> TokenBucket:
        """Return the bucket of a key; full, if it is new."""
        limit = key.tokens_per_minute
        bucket = self._buckets.setdefault(key.digest, TokenBucket(limit, limit, self._clock()))
        if bucket.capacity != limit:
            bucket.resize(limit)
        return bucket

    def retain(self, keys: Sequence[ApiKey]) -> None:
        """Drop the buckets of all other keys."""
        digests = {key.digest for key in keys}
        self._buckets = {each: b for each, b in self._buckets.items() if each in digests}

    def check(self, key: ApiKey, tokens: int) -> None:
        """Raise unless a key may use so many tokens now.

        Raises:
            ApiError: 429, with the seconds until it may.
        """
        seconds = self.bucket(key).seconds_until(tokens, self._clock())
        if seconds > 0:
            wait = max(1, math.ceil(seconds))
            raise ApiError(
                429,
                f"Rate limit reached for the key {key.name}: {key.tokens_per_minute} tokens per "
                f"minute, of prompts and answers together. Try again in {wait} s.",
                type="rate_limit_error",
                code="rate_limit_exceeded",
                retry_after=wait,
            )

    @contextmanager
    def charge(
        self, key: ApiKey, prompts: Sequence[str | Messages], output: int = 0
    ) -> Iterator[Charge]:
        """Admit a request, and charge its key for the length of the block.

        Args:
            key: of the request.
            prompts: of the request.
            output: tokens that all its answers together may have.

        Raises:
            ApiError: 429, with the seconds until the request may be sent again.
        """
        estimates = [estimate_tokens(prompt) for prompt in prompts]
        self.check(key, sum(estimates) + output)
        charge = Charge(self.bucket(key), estimates, output, self._clock)
        try:
            yield charge
        except Exception:
            charge.return_prompts()
            raise
        finally:
            charge.return_output()
