"""The state of a request while it is answered: its answers, and the next response to send."""

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
"""Pause between two responses of a stream, multiplied by the number of open streams. Sending one
response takes about 0.3 ms of the engine's thread, so all streams together take a twentieth of the
thread's time."""
MAX_PAUSE_SECONDS = 0.25
"""Longest pause for any number of open streams, so that a reader sees the text flow."""


@dataclass(frozen=True)
class Part:
    """The content of one response.

    Attributes:
        texts: the new text of each answer.
        reasons: the finish reason of each answer; "" while the answer continues.
        output_tokens: the new tokens of each answer since the previous response.
        is_last: whether this is the last response.
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
        """Whether the client cancelled the request; this call may take a while."""

    def keep_alive(self) -> None:
        """Send an empty part if the client has received nothing for a while."""


@dataclass(frozen=True, eq=False)
class GenerateRequest:
    """A checked request.

    Attributes:
        ids: the prompt, int64 tokens [1, tokens].
        sampling: the sampling, with max_tokens set.
        stream: whether to stream the answer in several responses.
        echo: the text that begins every answer: the prompt, or nothing.
    """

    ids: Any
    sampling: Sampling
    stream: bool
    echo: str = ""

    @property
    def input_tokens(self) -> int:
        """The number of tokens of the prompt."""
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
        self.has_ended = False  # the engine adds no tokens; the last text may not be decoded yet
        self._end_reason = LENGTH
        self._hidden_tokens = 0

    @property
    def tokens(self) -> int:
        """The number of generated tokens, including the token that ended the answer."""
        return len(self.detokenizer.ids) + self._hidden_tokens

    @property
    def unsent(self) -> int:
        """The number of tokens that no response has reported."""
        return self.tokens - self._sent_tokens

    @property
    def needs_decoding(self) -> bool:
        """Whether there are tokens to decode, or the end of the answer is not processed yet."""
        has_new = self._decoded_tokens < len(self.detokenizer.ids)
        return not self.reason and (has_new or self.has_ended)

    def add(self, ids: Sequence[int]) -> None:
        """Add tokens that the engine has generated."""
        self.detokenizer.add(ids)

    def end(self, reason: str, ends: Collection[int] = ()) -> None:
        """Record that the engine generates no more tokens.

        Args:
            reason: the finish reason.
            ends: the tokens that end an answer and are not shown.
        """
        self.has_ended, self._end_reason = True, reason
        shown = list(shown_ids(self.detokenizer.ids, ends))
        self._hidden_tokens = len(self.detokenizer.ids) - len(shown)
        self.detokenizer.ids = shown

    def add_text(self, known: str, text: str) -> None:
        """Add the text of the tokens that were decoded last.

        Args:
            known: the decoded first list of `Detokenizer.windows`.
            text: the decoded second list.
        """
        new = self.detokenizer.new_text(known, text, is_last=self.has_ended)
        self._decoded_tokens = len(self.detokenizer.ids)
        self._text += self._stops.filter(new, is_last=self.has_ended)
        if self._stops.found:
            self.reason = STOP
        elif self.has_ended:
            self.reason = self._end_reason

    def take_part(self) -> tuple[str, str, int]:
        """Return the text, finish reason and number of tokens that are new since the last call."""
        text, tokens = self._text, self.unsent
        self._text, self._sent_tokens = "", self.tokens
        return text, self.reason, tokens


@dataclass(eq=False)
class Stream:
    """One request, its answers, and when its parts are sent.

    Attributes:
        request: the client's request.
        listener: sends responses to the client.
        interval: the number of tokens of an answer between two parts; the first part is sent at
            once. None: parts are sent after a pause, see `pause_seconds`.
        answers: the answers, `sampling.n` of them.
        began: when the request arrived, in seconds of `perf_counter`.
        first_at: when the first token was generated; 0 before.
        last_at: when the last token so far was generated; 0 before.
        is_cancelled: whether the client has cancelled the request.
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
        """The number of generated tokens of all answers."""
        return sum(answer.tokens for answer in self.answers)

    def record_tokens(self, now: float) -> None:
        """Record that tokens were generated at `now`."""
        self.first_at = self.first_at or now
        self.last_at = now

    def must_decode(self, answer: Answer, pause: float) -> bool:
        """Whether an answer must be decoded now, to send its text or to find a stop text.

        Args:
            answer: one of this stream's answers.
            pause: the seconds between two parts, used if no interval is set.
        """
        return answer.has_stops or (self.request.stream and self._has_enough(answer, pause))

    def is_due(self, pause: float) -> bool:
        """Whether the next part must be sent now."""
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
    """Return the seconds between two parts of a stream, if `streams` streams are open."""
    return min(PAUSE_SECONDS * streams, MAX_PAUSE_SECONDS)
