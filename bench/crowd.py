"""Streams through Triton that begin at once, each followed by the next, and their prompts."""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from bench.measure import quantile
from millrace.serving.triton.streams.stream_client import Sampling, StreamClient


@dataclass
class Passages:
    """Parts of a text, none of them twice: the engine would have the second one in its cache.

    Attributes:
        text: the text, from which they are taken in order.
        characters: length of each.
        prefix: the beginning of each.
    """

    text: str
    characters: int
    prefix: str = ""
    _at: int = field(default=0, init=False)

    def rewind(self) -> None:
        """Start from the beginning of the text again."""
        self._at = 0

    def take(self, count: int) -> list[str]:
        """Return the next ones.

        Raises:
            ValueError: the text is too short.
        """
        starts = [self._at + number * self.characters for number in range(count)]
        self._at += count * self.characters
        if self._at > len(self.text):
            raise ValueError(f"{self._at} characters are asked of a text of {len(self.text)}")
        return [self.prefix + self.text[start : start + self.characters] for start in starts]


@dataclass
class Crowd:
    """A number of streams at a time; each call sends new prompts.

    Attributes:
        client: of the server.
        model: its name on the server.
        passages: the prompts.
        streams: number of streams at a time.
        tokens: lengths of the answers, in turn.
        turns: number of prompts of each stream in one call.
        first_s: seconds to the first token of the streams that began at once, a list per call.
        answers: texts of the last call.
    """

    client: StreamClient
    model: str
    passages: Passages
    streams: int
    tokens: Sequence[int]
    turns: int = 1
    first_s: list[list[float]] = field(default_factory=list, init=False)
    answers: list[str] = field(default_factory=list, init=False)

    def __call__(self) -> float:
        """Send the prompts, and return the tokens per second of all streams together."""
        prompts = self.passages.take(self.streams * self.turns)
        with ThreadPoolExecutor(self.streams) as threads:
            start = time.perf_counter()
            wanted = repeat_to(self.tokens, len(prompts))
            found = list(threads.map(self._generate, prompts, wanted))
            seconds = time.perf_counter() - start
        self.first_s.append([first for first, _, _ in found[: self.streams]])
        self.answers = [text for _, text, _ in found]
        return sum(tokens for _, _, tokens in found) / seconds

    def first_ms(self, share: float, dropped: int = 1) -> float:
        """Return a quantile of the times to the first token, without those of the first calls."""
        times = [each for streams in self.first_s[dropped:] for each in streams]
        return quantile(times, share) * 1000

    def describe(self) -> str:
        """Return median and p99 of the times to the first token."""
        p50, p99 = self.first_ms(0.5), self.first_ms(0.99)
        return f"first token p50 {p50:.1f} ms, p99 {p99:.1f} ms"

    def _generate(self, prompt: str, wanted: int) -> tuple[float, str, int]:
        sampling = Sampling(temperature=0, max_tokens=wanted, ignore_eos=True)
        start, first, texts, tokens = time.perf_counter(), 0.0, [], 0
        for piece in self.client.generate(self.model, prompt, sampling):
            first = first or time.perf_counter() - start
            texts.append(piece.texts[0])
            tokens += piece.output_tokens[0]
        return first, "".join(texts), tokens


def repeat_to(values: Sequence[int], count: int) -> list[int]:
    """Return `count` values: these, and again from the first after the last."""
    return [values[number % len(values)] for number in range(count)]
