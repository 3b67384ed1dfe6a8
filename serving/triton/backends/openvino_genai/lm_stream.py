"""The state of a request while it is answered: its answers, and the next part to send."""

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from language_generation import shown_ids  # type: ignore[import-not-found]
from lm_errors import RequestError  # type: ignore[import-not-found]
from lm_sampling import Sampling  # type: ignore[import-not-found]
from lm_text import Detokenizer, StopFilter  # type: ignore[import-not-found]

STOP, LENGTH, CANCELLED = "stop", "length", "cancelled"
PAUSE_SECONDS = 0.006
"""Between two parts of a stream, for each open stream. Sending a part takes the engine's thread
about 0.3 ms, so all streams together take a twentieth of its time."""
MAX_PAUSE_SECONDS = 0.25
"""However many streams are open, so that a reader sees the text flow."""


@dataclass(frozen=True)
class Part:
    """The content of one response.

    Attributes:
        texts: the new text of each answer; so reasons, its finish reason, "" while it continues.
        output_tokens: of each answer, since the response before.
        is_last: whether no response follows.
    """

    texts: tuple[str, ...]
    reasons: tuple[str, ...]
    output_tokens: tuple[int, ...]
    is_last: bool


class Listener(Protocol):
    """The client of a request."""

    def send(self, what: Part | RequestError) -> bool:
        """Send a part or an error; return false if the client no longer listens."""

    def is_cancelled(self) -> bool:
        """Whether the client cancelled the request; may take a while."""

    def keep_alive(self) -> None:
        """Send an empty part, if the client has received nothing for long."""


@dataclass(frozen=True, eq=False)
class GenerateRequest:
    """A checked request.

    Attributes:
        ids: the prompt, int64 tokens [1, tokens].
        sampling: with max_tokens set.
        stream: whether to send pieces, or one response.
        echo: the beginning of every answer: the prompt, or nothing.
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

    def __init__(self, request: GenerateRequest) -> None:
        self.handle: Any = None
        self.reason = ""
        self.detokenizer = Detokenizer()
        self.has_stops = bool(request.sampling.stop)
        self._stops = StopFilter(request.sampling.stop)
        self._text = request.echo
        self._sent_tokens = 0
        self._decoded_tokens = 0
        self.has_ended = False  # for the engine; its last text may not be decoded yet
        self._end_reason = LENGTH
        self._hidden_tokens = 0

    @property
    def tokens(self) -> int:
        """Tokens that the engine has generated, with the one that ended the answer."""
        return len(self.detokenizer.ids) + self._hidden_tokens

    @property
    def unsent(self) -> int:
        """Tokens that no response has counted."""
        return self.tokens - self._sent_tokens

    @property
    def needs_decoding(self) -> bool:
        """Whether there are tokens to decode, or an end to find."""
        has_new = self._decoded_tokens < len(self.detokenizer.ids)
        return not self.reason and (has_new or self.has_ended)

    def add(self, ids: Sequence[int]) -> None:
        """Add tokens of the engine."""
        self.detokenizer.add(ids)

    def end(self, reason: str, ends: Collection[int] = ()) -> None:
        """Record that the engine generates no more tokens.

        Args:
            reason: why.
            ends: tokens that end an answer and are not shown.
        """
        self.has_ended, self._end_reason = True, reason
        shown = list(shown_ids(self.detokenizer.ids, ends))
        self._hidden_tokens = len(self.detokenizer.ids) - len(shown)
        self.detokenizer.ids = shown

    def add_text(self, known: str, text: str) -> None:
        """Add the decoded windows of the detokenizer."""
        new = self.detokenizer.new_text(known, text, is_last=self.has_ended)
        self._decoded_tokens = len(self.detokenizer.ids)
        self._text += self._stops.filter(new, is_last=self.has_ended)
        if self._stops.found:
            self.reason = STOP
        elif self.has_ended:
            self.reason = self._end_reason

    def take_part(self) -> tuple[str, str, int]:
        """Return the text, the finish reason and the tokens since the last call."""
        text, tokens = self._text, self.unsent
        self._text, self._sent_tokens = "", self.tokens
        return text, self.reason, tokens


@dataclass(eq=False)
class Stream:
    """One request, its answers, and when its parts are sent.

    Attributes:
        request: of the client.
        listener: the client.
        interval: tokens of an answer between two parts, the first of which is sent at once; None
            for the tokens that come in the pause between two parts.
        answers: as many as requested.
        began: when the request came, in seconds of `perf_counter`.
        first_at: when its first token came; so last_at, its last.
        is_cancelled: whether the client is known to have cancelled it.
    """

    request: GenerateRequest
    listener: Listener
    interval: int | None = None
    answers: list[Answer] = field(init=False)
    began: float = field(default_factory=time.perf_counter)
    first_at: float = 0.0
    last_at: float = 0.0
    is_cancelled: bool = False

    def __post_init__(self) -> None:
        self.answers = [Answer(self.request) for _ in range(self.request.sampling.n)]
        self._parts, self._sent_at = 0, 0.0

    @property
    def is_done(self) -> bool:
        """Whether every answer has ended."""
        return all(answer.reason for answer in self.answers)

    @property
    def open_answers(self) -> list[Answer]:
        """The answers that have not ended."""
        return [answer for answer in self.answers if not answer.reason]

    @property
    def output_tokens(self) -> int:
        """Tokens of all answers."""
        return sum(answer.tokens for answer in self.answers)

    def record_tokens(self, now: float) -> None:
        """Record when tokens came."""
        self.first_at = self.first_at or now
        self.last_at = now

    def must_decode(self, answer: Answer, pause: float) -> bool:
        """Whether an answer is to be decoded now: to send it, or to find a stop text.

        Args:
            answer: of this stream.
            pause: seconds between two parts, if no interval is set.
        """
        return answer.has_stops or (self.request.stream and self._has_enough(answer, pause))

    def is_due(self, pause: float) -> bool:
        """Whether a part is to be sent now."""
        if self.is_done:
            return True
        return self.request.stream and any(self._has_enough(each, pause) for each in self.answers)

    def _has_enough(self, answer: Answer, pause: float) -> bool:
        """Whether an answer has enough new tokens for a part."""
        if self._parts and self.interval is not None:
            return answer.unsent >= self.interval
        return answer.unsent > 0 and self.last_at - self._sent_at >= pause

    def next_part(self) -> Part:
        """Return the next part."""
        self._parts, self._sent_at = self._parts + 1, self.last_at
        texts, reasons, tokens = zip(*(answer.take_part() for answer in self.answers), strict=True)
        return Part(texts, reasons, tokens, self.is_done)

    def cancelled_part(self) -> Part:
        """End the open answers, and return the last part of a cancelled request."""
        for answer in self.open_answers:
            answer.reason = CANCELLED
        return self.next_part()


def pause_seconds(streams: int) -> float:
    """Return the seconds between two parts of each of so many streams."""
    return min(PAUSE_SECONDS * streams, MAX_PAUSE_SECONDS)
