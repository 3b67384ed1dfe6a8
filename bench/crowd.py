"""Streams through Triton that begin at once, each followed by the next, and what they are asked."""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from bench.rounds import quantile
from millrace.serving.triton.language.stream_client import LanguageClient, Sampling


@dataclass
class Passages:
    """Parts of a text, none twice: the engine would have the second one in its cache.

    Attributes:
        text: where they are taken from, from its beginning.
        characters: of each.
        prefix: what each begins with.
    """

    text: str
    characters: int
    prefix: str = ""
    _at: int = field(default=0, init=False)

    def rewind(self) -> None:
        """Begin again."""
        self._at = 0

    def take(self, count: int) -> list[str]:
        """Return the next ones; ValueError where the text ends before."""
        starts = [self._at + number * self.characters for number in range(count)]
        self._at += count * self.characters
        if self._at > len(self.text):
            raise ValueError(f"{self._at} characters are asked of a text of {len(self.text)}")
        return [self.prefix + self.text[start : start + self.characters] for start in starts]


@dataclass
class Crowd:
    """As many streams at a time as are asked for, again and again, of new prompts each time.

    Attributes:
        client: asks.
        model: by its name on the server.
        passages: the prompts.
        streams: how many.
        tokens: of the answers, in turn.
        first_s: seconds to the first token of those that began at once, one list for each time.
        answers: texts of the last time.
    """

    client: LanguageClient
    model: str
    passages: Passages
    streams: int
    tokens: Sequence[int]
    turns: int = 1
    first_s: list[list[float]] = field(default_factory=list, init=False)
    answers: list[str] = field(default_factory=list, init=False)

    def __call__(self) -> float:
        """Ask once, and return the tokens per second of all streams together."""
        prompts = self.passages.take(self.streams * self.turns)
        with ThreadPoolExecutor(self.streams) as threads:
            start = time.perf_counter()
            found = list(threads.map(self._one, prompts, dealt(self.tokens, len(prompts))))
            seconds = time.perf_counter() - start
        self.first_s.append([first for first, _, _ in found[: self.streams]])
        self.answers = [text for _, text, _ in found]
        return sum(tokens for _, _, tokens in found) / seconds

    def first_ms(self, share: float, dropped: int = 1) -> float:
        """Return a quantile of the times to the first token, without those of the first times."""
        times = [each for streams in self.first_s[dropped:] for each in streams]
        return quantile(times, share) * 1000

    def in_words(self) -> str:
        """Return median and p99 of the times to the first token."""
        p50, p99 = self.first_ms(0.5), self.first_ms(0.99)
        return f"first token p50 {p50:.1f} ms, p99 {p99:.1f} ms"

    def _one(self, prompt: str, wanted: int) -> tuple[float, str, int]:
        sampling = Sampling(temperature=0, max_tokens=wanted, ignore_eos=True)
        start, first, texts, tokens = time.perf_counter(), 0.0, [], 0
        for piece in self.client.generate(self.model, prompt, sampling):
            first = first or time.perf_counter() - start
            texts.append(piece.texts[0])
            tokens += piece.output_tokens[0]
        return first, "".join(texts), tokens


def dealt(values: Sequence[int], count: int) -> list[int]:
    """Return so many values, from the first again after the last."""
    return [values[number % len(values)] for number in range(count)]
