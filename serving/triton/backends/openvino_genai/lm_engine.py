"""The thread that owns the engine: it adds requests, steps, and sends what moved.

`openvino_genai.ContinuousBatchingPipeline` batches whatever is in it at each step. No more is put
there than `max_num_seqs` answers, so that what waits is ours to count, to refuse and to drop.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import lm_no_telemetry  # type: ignore[import-not-found]  # noqa: F401
import openvino as ov
import openvino_genai as genai
from language_generation import ends_of, greedy_config  # type: ignore[import-not-found]
from lm_arrivals import Arrivals  # type: ignore[import-not-found]
from lm_refused import FULL, UNAVAILABLE, Refused, invalid  # type: ignore[import-not-found]
from lm_sampling import Sampling  # type: ignore[import-not-found]
from lm_stream import (  # type: ignore[import-not-found]
    LENGTH,
    STOP,
    Answer,
    Stream,
    pause_of,
)

SEED_STEP = 0x9E3779B1
SEED_SPACE = 2**32
"""The engine uses the lower half of a seed."""
AGAIN_SECONDS = 5.0
SETTLING_STEPS = 2
"""After the last request: one lets go of it, the next counts what is left."""


class Counts(Protocol):
    """Takes what the engine counts."""

    def finished(self, stream: Stream) -> None:
        """Count a request that was answered."""


@dataclass(frozen=True)
class Limits:
    """What is taken on at a time.

    Attributes:
        sequences: answers that the engine works on.
        waiting: requests that wait for it.
        guesses: tokens that the draft model guesses ahead; None without one.
    """

    sequences: int
    waiting: int
    guesses: int | None = None


class Engine:
    """A queue of requests and the thread that answers them.

    Args:
        make: opens the pipeline; called again after it failed.
        limits: how much is taken on.
        counts: told of every answer.
        log: takes what went wrong, for the server's log alone.
    """

    def __init__(
        self,
        make: Callable[[], Any],
        limits: Limits,
        counts: Counts,
        log: Callable[[str], None],
    ) -> None:
        self._make, self._limits, self._counts, self._log = make, limits, counts, log
        self._pipeline: Any = make()
        self.tokenizer = self._pipeline.get_tokenizer()
        self.defaults = self._pipeline.get_config()
        self.ends = ends_of(self.defaults)
        self.arrivals = Arrivals()
        self._changed = threading.Condition()
        self._waiting: deque[Stream] = deque()
        self._running: list[Stream] = []
        self._closing_at: float | None = None
        self._number = 0
        self.cache_usage = 0.0
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Requests that the engine has not begun."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Answers that the engine works on."""
        return sum(len(stream.open_answers) for stream in self._running)

    def open_streams(self) -> list[Stream]:
        """Return the requests that are not answered yet."""
        with self._changed:
            return [*self._waiting, *self._running]

    def put(self, stream: Stream) -> None:
        """Take a request on.

        Raises:
            Refused: too many wait, or the model is being unloaded.
        """
        with self._changed:
            if self._closing_at is not None or not self._thread.is_alive():
                raise Refused(UNAVAILABLE, "the model is being unloaded; try again")
            if len(self._waiting) >= self._limits.waiting:
                raise Refused(
                    FULL,
                    f"{self._limits.waiting} requests wait already, which is the most; try later",
                )
            self._waiting.append(stream)
            self._changed.notify()

    def give_up(self, streams: Sequence[Stream]) -> None:
        """Have requests dropped whose clients gave up."""
        with self._changed:
            for stream in streams:
                stream.given_up = True
            self._changed.notify()

    def close(self, seconds: float) -> None:
        """Answer what there is, for so long, end the rest, and free the engine."""
        with self._changed:
            self._closing_at = time.monotonic() + seconds
            self._changed.notify()
        self._thread.join()
        self._pipeline = None

    def _run(self) -> None:
        try:
            while self._goes_on():
                try:
                    self._turn()
                except Exception as error:  # of the engine or our own: no request waits for ever
                    self._fail(error)
        finally:
            self._end(Refused(UNAVAILABLE, "the model was unloaded before the answer; try again"))

    def _goes_on(self) -> bool:
        """Wait for something to do; false when all is done, or time is up."""
        with self._changed:
            while not (self._waiting or self._running or self._closing_at is not None):
                self._changed.wait()
            if self._closing_at is None:
                return True
            late = time.monotonic() > self._closing_at
            return bool(self._waiting or self._running) and not late

    def _turn(self) -> None:
        """Make one step of the engine, and send what came of it."""
        if self._pipeline is None:
            self._open_again()
        self.arrivals.gather()
        self._drop_given_up()
        self._admit()
        if self._running:
            self._pipeline.step()
            self._read()
            pause = pause_of(len(self._running))
            self._decode(pause)
            self._tell(pause)
        self._rest()

    def _rest(self) -> None:
        """See what of the cache is in use: only steps with nothing to do count it as free."""
        for _ in range(0 if self._running else SETTLING_STEPS):
            self._pipeline.step()
        self.cache_usage = self._pipeline.get_metrics().cache_usage / 100

    def _admit(self) -> None:
        """Hand over what waits, first come first served, as far as there is room."""
        while True:
            with self._changed:
                if not self._waiting or not self._has_room(self._waiting[0]):
                    return
                stream = self._waiting.popleft()
                self._running.append(stream)
            try:
                for index, answer in enumerate(stream.answers):
                    self._number += 1
                    config = generation_config(stream.asked.sampling, index, self.defaults)
                    if self._limits.guesses is not None:
                        config.num_assistant_tokens = self._limits.guesses
                    ids = ov.Tensor(stream.asked.ids)
                    answer.handle = self._pipeline.add_request(self._number, ids, config)
            except RuntimeError as error:
                self._log(f"the engine refused a request: {error}")
                self._leave(stream, invalid("the engine does not take this request"))

    def _has_room(self, stream: Stream) -> bool:
        return self.running + len(stream.answers) <= self._limits.sequences

    def _drop_given_up(self) -> None:
        for stream in [each for each in self.open_streams() if each.given_up]:
            stream.listener.send(stream.cut_short())
            self._counts.finished(stream)
            self._forget(stream)

    def _read(self) -> None:
        """Take the tokens that the engine has made."""
        now = time.perf_counter()
        for stream in list(self._running):
            for answer in stream.open_answers:
                read(stream, answer, now, self.ends)
            if any(is_ignored(answer) for answer in stream.open_answers):
                text = "the answer does not fit the engine's cache; ask for fewer tokens"
                self._leave(stream, Refused(FULL, text))

    def _decode(self, pause: float) -> None:
        """Turn what is to be sent into text, by one call for all."""
        stale = [
            answer
            for stream in self._running
            for answer in stream.answers
            if answer.is_stale and (stream.wants(answer, pause) or answer.has_ended)
        ]
        if not stale:
            return
        windows = [window for answer in stale for window in answer.detokenizer.windows()]
        texts = iter(self.tokenizer.decode(windows))
        for answer in stale:
            answer.take(next(texts), next(texts))
            if answer.reason and not answer.has_ended:
                answer.handle.stop()
            if answer.reason:
                answer.handle = None

    def _tell(self, pause: float) -> None:
        for stream in [each for each in self._running if each.is_due(pause)]:
            listens = stream.listener.send(stream.part())
            if stream.is_done or not listens:
                self._counts.finished(stream)
                self._forget(stream)
        for stream in self.open_streams():
            stream.listener.beat()

    def _leave(self, stream: Stream, why: Refused) -> None:
        """End a request by an error."""
        stream.listener.send(why)
        self._forget(stream)

    def _forget(self, stream: Stream) -> None:
        """Let go of a request; the engine frees what nobody holds a handle of."""
        with self._changed:
            for answer in stream.answers:
                if answer.handle is not None:
                    answer.handle.cancel()
                answer.handle = None
            for queue in (self._waiting, self._running):
                if stream in queue:
                    queue.remove(stream)

    def _fail(self, error: Exception) -> None:
        """End what the engine was working on, and have a new one made; what waits goes on."""
        self._log(f"the engine failed, and is made anew: {error!r}")
        text = "the engine failed at work on this and other requests and is made anew; try again"
        for stream in list(self._running):
            self._leave(stream, Refused(UNAVAILABLE, text))
        self._pipeline, self.cache_usage = None, 0.0

    def _open_again(self) -> None:
        """Make the pipeline anew; while that fails, what waits is refused and it is tried later."""
        try:
            self._pipeline = self._make()
            self.tokenizer = self._pipeline.get_tokenizer()
        except Exception:
            self._end(Refused(UNAVAILABLE, "the engine cannot be made anew; see Triton's log"))
            time.sleep(AGAIN_SECONDS)
            raise

    def _end(self, why: Refused) -> None:
        for stream in self.open_streams():
            self._leave(stream, why)


def read(stream: Stream, answer: Answer, now: float, ends: Collection[int]) -> None:
    """Take the tokens that the engine has made of an answer.

    Args:
        stream: the request.
        answer: one of its answers.
        now: seconds of `perf_counter`.
        ends: the tokens that end an answer; the one that did is counted and not shown.
    """
    ends = () if stream.asked.sampling.ignore_eos else ends
    while answer.handle.can_read():
        for output in answer.handle.read().values():
            answer.add(output.generated_ids)
            stream.note_tokens(now)
            if output.finish_reason != genai.GenerationFinishReason.NONE:
                answer.end(reason_of(output.finish_reason), ends)


def is_ignored(answer: Answer) -> bool:
    """Tell whether the engine let go of an answer that its cache has no room for."""
    ignored = genai.GenerationStatus.IGNORED
    return not answer.has_ended and answer.handle.get_status() == ignored


def generation_config(sampling: Sampling, index: int, defaults: Any) -> Any:
    """Translate to the engine's words, for the answer of this index.

    Args:
        sampling: with max_tokens and a seed.
        index: from 0 to n - 1.
        defaults: the engine's own, which knows the tokens that end a text.
    """
    config = greedy_config(defaults, sampling.max_tokens, ignore_eos=sampling.ignore_eos)
    config.min_new_tokens = sampling.min_tokens
    config.repetition_penalty = sampling.repetition_penalty
    config.do_sample = not sampling.is_greedy
    if config.do_sample:
        config.temperature = sampling.temperature
        config.top_p = sampling.top_p
        if sampling.top_k is not None:
            config.top_k = sampling.top_k
        config.rng_seed = (sampling.seed + index * SEED_STEP) % SEED_SPACE
    return config


def reason_of(finish_reason: Any) -> str:
    """Return the word for why the engine ended an answer."""
    is_length = finish_reason == genai.GenerationFinishReason.LENGTH
    return str(LENGTH if is_length else STOP)
