"""Tokens per minute: a token bucket for each key, and what a request takes from it.

A bucket holds what a minute allows and fills up steadily. A request is let in when the bucket has
what its prompts are estimated to need and its answers may have, or is full: that is taken at once,
so that many requests sent together do not all get in by the same tokens. The first piece says how
long the prompt is; what the answers did not need comes back when all have ended. What was begun is
never cut off: it may leave a debt, which the key's next request waits for. Buckets live with the
process.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from millrace.serving.openai_api.api_key import Key
from millrace.serving.openai_api.error_response import Refusal
from millrace.serving.triton.language.stream_request import Messages, Piece

SECONDS = 60.0
CHARACTERS = 4
"""For each token of a prompt, estimated."""
MESSAGE_TOKENS = 4
"""That a chat template puts around a message, estimated."""


@dataclass
class Bucket:
    """Tokens that may be used.

    Attributes:
        capacity: that it holds, and that come in a minute.
        level: that it holds now; below 0 in debt.
        at: seconds of the clock, at which it held them.
    """

    capacity: int
    level: float
    at: float

    def refill(self, now: float) -> None:
        """Add what has come since."""
        passed = max(0.0, now - self.at)
        self.level = min(self.capacity, self.level + passed * self.capacity / SECONDS)
        self.at = max(self.at, now)

    def resize(self, capacity: int) -> None:
        """Hold another number of tokens; what was used stays used."""
        self.level += capacity - self.capacity
        self.capacity = capacity

    def seconds_until(self, tokens: int, now: float) -> float:
        """Return how long until it has so many tokens, or is full; 0 if it has."""
        self.refill(now)
        missing = min(tokens, self.capacity) - self.level
        return max(0.0, missing * SECONDS / self.capacity)

    def take(self, tokens: int, now: float) -> None:
        """Take tokens, also those that it does not have; put back what is negative."""
        self.refill(now)
        self.level = min(self.capacity, self.level - tokens)


def estimate(prompt: str | Messages) -> int:
    """Return about how many tokens a prompt has."""
    if isinstance(prompt, str):
        return math.ceil(len(prompt) / CHARACTERS)
    texts = sum(math.ceil(len(message["content"]) / CHARACTERS) for message in prompt)
    return texts + MESSAGE_TOKENS * len(prompt)


class Charge:
    """What one request takes from a bucket.

    Args:
        bucket: its key's.
        estimates: tokens of each prompt.
        output: tokens that all answers together may have; more than the bucket holds beside the
            prompts is no debt before it is made.
        clock: seconds that only grow.
    """

    def __init__(
        self, bucket: Bucket, estimates: Sequence[int], output: int, clock: Callable[[], float]
    ) -> None:
        self._bucket, self._clock = bucket, clock
        self._estimates = dict(enumerate(estimates))
        self._output = max(0, min(output, bucket.capacity - sum(estimates)))
        bucket.take(sum(estimates) + self._output, clock())

    def hear(self, prompt: int, piece: Piece) -> None:
        """Take what a piece of the answer to one of the prompts says was used."""
        input_tokens = piece.input_tokens - self._estimates.pop(prompt, piece.input_tokens)
        output_tokens = sum(piece.output_tokens)
        taken = min(output_tokens, self._output)
        self._output -= taken
        self._bucket.take(input_tokens + output_tokens - taken, self._clock())

    def end(self) -> None:
        """Put back what the answers did not need."""
        self._bucket.take(-self._output, self._clock())
        self._output = 0

    def put_back(self) -> None:
        """Put back what prompts were estimated to need that got no answer."""
        self._bucket.take(-sum(self._estimates.values()), self._clock())
        self._estimates.clear()


class Allowances:
    """The buckets of all keys.

    Args:
        clock: seconds that only grow.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._buckets: dict[str, Bucket] = {}

    def bucket(self, key: Key) -> Bucket:
        """Return the bucket of a key; full, if it is new."""
        limit = key.tokens_per_minute
        found = self._buckets.setdefault(key.digest, Bucket(limit, limit, self._clock()))
        if found.capacity != limit:
            found.resize(limit)
        return found

    def keep(self, keys: Sequence[Key]) -> None:
        """Forget the buckets of keys that are gone."""
        digests = {key.digest for key in keys}
        self._buckets = {each: b for each, b in self._buckets.items() if each in digests}

    def check(self, key: Key, tokens: int) -> None:
        """See that a key may use so many tokens now.

        Raises:
            Refusal: 429, with the seconds until it may.
        """
        seconds = self.bucket(key).seconds_until(tokens, self._clock())
        if seconds > 0:
            wait = max(1, math.ceil(seconds))
            raise Refusal(
                429,
                f"Rate limit reached for the key {key.name}: {key.tokens_per_minute} tokens per "
                f"minute, of prompts and answers together. Try again in {wait} s.",
                type="rate_limit_error",
                code="rate_limit_exceeded",
                retry_after=wait,
            )

    @contextmanager
    def charged(
        self, key: Key, prompts: Sequence[str | Messages], output: int = 0
    ) -> Iterator[Charge]:
        """Let a request in, and charge its key for the length of the block.

        Args:
            key: whose.
            prompts: of the request.
            output: tokens that all its answers together may have.

        Raises:
            Refusal: 429, with the seconds until it may come in.
        """
        estimates = [estimate(prompt) for prompt in prompts]
        self.check(key, sum(estimates) + output)
        charge = Charge(self.bucket(key), estimates, output, self._clock)
        try:
            yield charge
        except Exception:
            charge.put_back()
            raise
        finally:
            charge.end()
