"""One request while it is answered: what each of its answers has, and what is sent next."""

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from language_generation import shown_ids  # type: ignore[import-not-found]
from lm_refused import Refused  # type: ignore[import-not-found]
from lm_sampling import Sampling  # type: ignore[import-not-found]
from lm_text import Detokenizer, Stops  # type: ignore[import-not-found]

STOP, LENGTH, CANCELLED = "stop", "length", "cancelled"
PAUSE_SECONDS = 0.006
"""Between two parts of a stream, for each stream under way: sending one takes the engine's thread
some 0.3 ms, so that all of them together take a twentieth of its time."""
MOST_PAUSE_SECONDS = 0.25
"""However many streams there are, a reader sees his text flow."""


@dataclass(frozen=True)
class Part:
    """What one response says.

    Attributes:
        texts: the new text of each answer; so reasons, why it ended, "" while it has not.
        output_tokens: of each answer, since the response before.
        is_last: whether no response follows.
    """

    texts: tuple[str, ...]
    reasons: tuple[str, ...]
    output_tokens: tuple[int, ...]
    is_last: bool


class Listener(Protocol):
    """Who waits for a request's answer."""

    def send(self, what: Part | Refused) -> bool:
        """Take a part, or why there is none; false when nobody listens any more."""

    def is_cancelled(self) -> bool:
        """Tell whether the client gave up; may take a while."""

    def beat(self) -> None:
        """Let the client know that this process lives, if it has not heard of it for long."""


@dataclass(frozen=True, eq=False)
class Asked:
    """What a request asks for, checked.

    Attributes:
        ids: the prompt, int64 tokens [1, tokens].
        sampling: with max_tokens set.
        stream: whether to send pieces, or one response.
        echo: what every answer begins with; the prompt, or nothing.
    """

    ids: Any
    sampling: Sampling
    stream: bool
    echo: str = ""

    @property
    def input_tokens(self) -> int:
        """Tokens of the prompt."""
        return int(self.ids.shape[1])


class Answer:
    """One of the answers to a prompt."""

    def __init__(self, asked: Asked) -> None:
        self.handle: Any = None
        self.reason = ""
        self.detokenizer = Detokenizer()
        self.has_stops = bool(asked.sampling.stop)
        self._stops = Stops(asked.sampling.stop)
        self._text = asked.echo
        self._sent_tokens = 0
        self._decoded_tokens = 0
        self.has_ended = False  # by the engine; its last text may not be decoded yet
        self._end = LENGTH
        self._hidden = 0

    @property
    def tokens(self) -> int:
        """Tokens that the engine has made, the one that ended the answer included."""
        return len(self.detokenizer.ids) + self._hidden

    @property
    def unsent(self) -> int:
        """Tokens that no response has told of."""
        return self.tokens - self._sent_tokens

    @property
    def is_stale(self) -> bool:
        """Whether there is something to decode."""
        behind = self._decoded_tokens < len(self.detokenizer.ids)
        return not self.reason and (behind or self.has_ended)

    def add(self, ids: Sequence[int]) -> None:
        """Take tokens of the engine."""
        self.detokenizer.add(ids)

    def end(self, reason: str, ends: Collection[int] = ()) -> None:
        """Note that the engine gives no more tokens.

        Args:
            reason: why.
            ends: tokens that end an answer and are not shown.
        """
        self.has_ended, self._end = True, reason
        shown = list(shown_ids(self.detokenizer.ids, ends))
        self._hidden = len(self.detokenizer.ids) - len(shown)
        self.detokenizer.ids = shown

    def take(self, known: str, text: str) -> None:
        """Take the decoded windows of the detokenizer."""
        new = self.detokenizer.take(known, text, is_last=self.has_ended)
        self._decoded_tokens = len(self.detokenizer.ids)
        self._text += self._stops.take(new, is_last=self.has_ended)
        if self._stops.found:
            self.reason = STOP
        elif self.has_ended:
            self.reason = self._end

    def part(self) -> tuple[str, str, int]:
        """Return text, reason and tokens since this was last called."""
        text, tokens = self._text, self.unsent
        self._text, self._sent_tokens = "", self.tokens
        return text, self.reason, tokens


@dataclass(eq=False)
class Stream:
    """One request: its answers, and how it is told of them.

    Attributes:
        asked: what it asks for.
        listener: who waits for it.
        interval: tokens of an answer between two parts, the first of which goes at once; None for
            as many as come in the pause that is due to so many streams.
        answers: as many as asked for.
        began: when it came, in seconds of `perf_counter`.
        first_at: when its first token was there; so last_at, its last.
        given_up: whether the client is known to have given up.
    """

    asked: Asked
    listener: Listener
    interval: int | None = None
    answers: list[Answer] = field(init=False)
    began: float = field(default_factory=time.perf_counter)
    first_at: float = 0.0
    last_at: float = 0.0
    given_up: bool = False

    def __post_init__(self) -> None:
        self.answers = [Answer(self.asked) for _ in range(self.asked.sampling.n)]
        self._parts, self._told_at = 0, 0.0

    @property
    def is_done(self) -> bool:
        """Whether every answer has ended."""
        return all(answer.reason for answer in self.answers)

    @property
    def open_answers(self) -> list[Answer]:
        """The answers that the engine still works on."""
        return [answer for answer in self.answers if not answer.reason]

    @property
    def output_tokens(self) -> int:
        """Tokens of all answers."""
        return sum(answer.tokens for answer in self.answers)

    def note_tokens(self, now: float) -> None:
        """Note when tokens came."""
        self.first_at = self.first_at or now
        self.last_at = now

    def wants(self, answer: Answer, pause: float) -> bool:
        """Tell whether an answer is to be decoded now: to send it, or to find its end.

        Args:
            answer: of this stream.
            pause: seconds between two parts, where no interval is set.
        """
        return answer.has_stops or (self.asked.stream and self._is_ripe(answer, pause))

    def is_due(self, pause: float) -> bool:
        """Tell whether a part goes out now."""
        if self.is_done:
            return True
        return self.asked.stream and any(self._is_ripe(each, pause) for each in self.answers)

    def _is_ripe(self, answer: Answer, pause: float) -> bool:
        """Tell whether there is enough of an answer for a part."""
        if self._parts and self.interval is not None:
            return answer.unsent >= self.interval
        return answer.unsent > 0 and self.last_at - self._told_at >= pause

    def part(self) -> Part:
        """Return the next part."""
        self._parts, self._told_at = self._parts + 1, self.last_at
        texts, reasons, tokens = zip(*(answer.part() for answer in self.answers), strict=True)
        return Part(texts, reasons, tokens, self.is_done)

    def cut_short(self) -> Part:
        """Return the last part of a request that is given up."""
        for answer in self.open_answers:
            answer.reason = CANCELLED
        return self.part()


def pause_of(streams: int) -> float:
    """Return the seconds between two parts of each of so many streams."""
    return min(PAUSE_SECONDS * streams, MOST_PAUSE_SECONDS)
