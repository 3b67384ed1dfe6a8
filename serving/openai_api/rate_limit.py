"""Tokens per minute: a token bucket for each API key, and the charges of requests to it.

A bucket holds the tokens of one minute and refills steadily. A request is admitted if the bucket is
full, or has the estimated tokens of the prompts plus the largest number that the answers may have.
These tokens are reserved at once, so that simultaneous requests do not use the same tokens. The
first piece of an answer reports the real length of the prompt. Tokens that the answers did not need
are returned when all answers have ended. An admitted request is never cut off: it may leave a debt,
and the key's next request waits until the debt is refilled. Buckets are lost when the process ends.
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
"""Estimated characters per token of a prompt."""
MESSAGE_TOKENS = 4
"""Estimated tokens that a chat template adds to each message."""


@dataclass
class TokenBucket:
    """A bucket of the tokens that a key may use.

    Attributes:
        capacity: the largest level, and the tokens added per minute.
        level: the tokens available now; below 0 if the key is in debt.
        updated_at: the clock's seconds at the last update of `level`.
    """

    capacity: int
    level: float
    updated_at: float

    def refill(self, now: float) -> None:
        """Add the tokens that have accrued since the last update."""
        passed = max(0.0, now - self.updated_at)
        self.level = min(self.capacity, self.level + passed * self.capacity / SECONDS)
        self.updated_at = max(self.updated_at, now)

    def resize(self, capacity: int) -> None:
        """Change the capacity; the tokens that were used stay used."""
        self.level += capacity - self.capacity
        self.capacity = capacity

    def seconds_until(self, tokens: int, now: float) -> float:
        """Return the seconds until the bucket has `tokens` or is full; at least 0."""
        self.refill(now)
        missing = min(tokens, self.capacity) - self.level
        return max(0.0, missing * SECONDS / self.capacity)

    def take(self, tokens: int, now: float) -> None:
        """Remove tokens, even if the level falls below 0; a negative number adds them back."""
        self.refill(now)
        self.level = min(self.capacity, self.level - tokens)


def estimate_tokens(prompt: str | Messages) -> int:
    """Return an estimate of the number of tokens in a prompt."""
    if isinstance(prompt, str):
        return math.ceil(len(prompt) / CHARACTERS)
    texts = sum(math.ceil(len(message["content"]) / CHARACTERS) for message in prompt)
    return texts + MESSAGE_TOKENS * len(prompt)


class Charge:
    """The tokens that one request takes from the bucket of its key.

    Args:
        bucket: the bucket of the request's key.
        estimates: the estimated tokens of each prompt.
        output: the largest number of tokens of all answers together. At most the bucket's capacity
            minus the estimated tokens of the prompts is reserved.
        clock: returns monotonic seconds.
    """

    def __init__(
        self, bucket: TokenBucket, estimates: Sequence[int], output: int, clock: Callable[[], float]
    ) -> None:
        self._bucket, self._clock = bucket, clock
        self._estimates = dict(enumerate(estimates))
        self._output = max(0, min(output, bucket.capacity - sum(estimates)))
        bucket.take(sum(estimates) + self._output, clock())

    def count_piece(self, prompt: int, piece: Piece) -> None:
        """Charge the tokens that a piece of the answer to prompt number `prompt` reports."""
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
    """The token buckets of all keys.

    Args:
        clock: returns monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._buckets: dict[str, TokenBucket] = {}

    def bucket(self, key: ApiKey) -> TokenBucket:
        """Return the bucket of a key; the bucket of a new key is full."""
        limit = key.tokens_per_minute
        bucket = self._buckets.setdefault(key.digest, TokenBucket(limit, limit, self._clock()))
        if bucket.capacity != limit:
            bucket.resize(limit)
        return bucket

    def retain(self, keys: Sequence[ApiKey]) -> None:
        """Drop the buckets of all keys but these."""
        digests = {key.digest for key in keys}
        self._buckets = {each: b for each, b in self._buckets.items() if each in digests}

    def check(self, key: ApiKey, tokens: int) -> None:
        """Raise an error unless a key may use this number of tokens now.

        Raises:
            ApiError: 429, with the seconds until the key may use them.
        """
        seconds = self.bucket(key).seconds_until(tokens, self._clock())
        if seconds > 0:
            wait = max(1, math.ceil(seconds))
            raise ApiError(
                429,
                f"Rate limit reached for the key {key.name}: {key.tokens_per_minute} tokens per "
                f"minute, prompts and answers together. Try again in {wait} s.",
                type="rate_limit_error",
                code="rate_limit_exceeded",
                retry_after=wait,
            )

    @contextmanager
    def charge(
        self, key: ApiKey, prompts: Sequence[str | Messages], output: int = 0
    ) -> Iterator[Charge]:
        """Admit a request and reserve its tokens; return the unused ones when the block ends.

        Args:
            key: the request's key.
            prompts: the request's prompts.
            output: the largest number of tokens of all its answers together.

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
