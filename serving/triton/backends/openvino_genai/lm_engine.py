"""The thread that owns the engine: it adds requests, runs the engine's steps, and sends new text.

The engine, `openvino_genai.ContinuousBatchingPipeline`, batches its requests at each step. It never
gets more than `max_num_seqs` answers at a time. The other requests wait in the queue of `Engine`,
which can count, refuse and cancel them.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from language_generation import ends_of  # type: ignore[import-not-found]
from lm_arrivals import Arrivals  # type: ignore[import-not-found]
from lm_errors import FULL, UNAVAILABLE, RequestError, invalid  # type: ignore[import-not-found]
from lm_pipeline import (  # type: ignore[import-not-found]
    add_request,
    generation_config,
    is_ignored,
    read_tokens,
)
from lm_stream import Stream, pause_seconds  # type: ignore[import-not-found]

REOPEN_SECONDS = 5.0
SETTLING_STEPS = 2
"""Steps after the last request: one releases the request, the next updates the cache usage."""


@dataclass(frozen=True)
class Limits:
    """The limits of the engine.

    Attributes:
        sequences: the largest number of answers that the engine generates at a time.
        waiting: the largest number of requests that wait for the engine.
        guesses: tokens that the draft model proposes at a time; None: no draft model.
    """

    sequences: int
    waiting: int
    guesses: int | None = None


class Engine:
    """A queue of requests and the thread that answers them.

    Args:
        open_pipeline: opens the engine; called again if the engine fails.
        limits: the limits of the engine.
        count_finished: counts a request that ended.
        log: writes an error to the server's log; clients do not see it.
    """

    def __init__(
        self,
        open_pipeline: Callable[[], Any],
        limits: Limits,
        count_finished: Callable[[Stream], None],
        log: Callable[[str], None],
    ) -> None:
        self._open_pipeline, self._limits = open_pipeline, limits
        self._count_finished, self._log = count_finished, log
        self._pipeline: Any = open_pipeline()
        self.tokenizer = self._pipeline.get_tokenizer()
        self._defaults = self._pipeline.get_config()
        self._ends = ends_of(self._defaults)
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
        """The number of requests that the engine has not started."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """The number of answers that the engine generates now."""
        return sum(len(stream.open_answers) for stream in self._running)

    def open_streams(self) -> list[Stream]:
        """Return the requests that are not fully answered yet."""
        with self._changed:
            return [*self._waiting, *self._running]

    def submit(self, stream: Stream) -> None:
        """Put a request into the queue.

        Raises:
            RequestError: too many requests wait, or the model is being unloaded.
        """
        with self._changed:
            if self._closing_at is not None or not self._thread.is_alive():
                raise RequestError(UNAVAILABLE, "the model is being unloaded; try again")
            if len(self._waiting) >= self._limits.waiting:
                raise RequestError(
                    FULL,
                    f"{self._limits.waiting} requests wait already, the limit; try again later",
                )
            self._waiting.append(stream)
            self._changed.notify()

    def cancel(self, streams: Sequence[Stream]) -> None:
        """Cancel requests; the engine's thread drops them."""
        with self._changed:
            for stream in streams:
                stream.is_cancelled = True
            self._changed.notify()

    def close(self, seconds: float) -> None:
        """Answer open requests for up to `seconds`, fail the others, and free the engine."""
        with self._changed:
            self._closing_at = time.monotonic() + seconds
            self._changed.notify()
        self._thread.join()
        self._pipeline = None

    def _run(self) -> None:
        try:
            while self._wait_for_work():
                try:
                    self._step()
                except Exception as error:  # any error, because no request may wait forever
                    self._drop_pipeline(error)
        finally:
            text = "the model was unloaded before the answer was complete; try again"
            self._end_all(RequestError(UNAVAILABLE, text))

    def _wait_for_work(self) -> bool:
        """Wait for a request; return false if the thread is to end because the engine closes."""
        with self._changed:
            while not (self._waiting or self._running or self._closing_at is not None):
                self._changed.wait()
            if self._closing_at is None:
                return True
            is_late = time.monotonic() > self._closing_at
            return bool(self._waiting or self._running) and not is_late

    def _step(self) -> None:
        """Make one step of the engine, and send the new text."""
        if self._pipeline is None:
            self._reopen_pipeline()
        self.arrivals.gather()
        self._drop_cancelled()
        self._admit()
        if self._running:
            self._pipeline.step()
            self._read()
            pause = pause_seconds(len(self._running))
            self._decode(pause)
            self._send(pause)
        self._measure_cache()

    def _measure_cache(self) -> None:
        """Read the usage of the KV cache, which the engine frees only in steps without requests."""
        for _ in range(0 if self._running else SETTLING_STEPS):
            self._pipeline.step()
        self.cache_usage = self._pipeline.get_metrics().cache_usage / 100

    def _admit(self) -> None:
        """Give waiting requests to the engine, first come first served, while it has room."""
        while True:
            with self._changed:
                if not self._waiting:
                    return
                stream = self._waiting[0]
                if self.running + len(stream.answers) > self._limits.sequences:
                    return
                self._running.append(self._waiting.popleft())
            sampling, guesses = stream.request.sampling, self._limits.guesses
            try:
                for index, answer in enumerate(stream.answers):
                    self._number += 1
                    config = generation_config(sampling, index, self._defaults, guesses)
                    answer.handle = add_request(
                        self._pipeline, self._number, stream.request.ids, config
                    )
            except RuntimeError as error:
                self._log(f"OpenVINO GenAI refused a request: {error}")
                self._end(stream, invalid("the engine refused this request; see Triton's log"))

    def _drop_cancelled(self) -> None:
        for stream in [each for each in self.open_streams() if each.is_cancelled]:
            stream.listener.send(stream.cancelled_part())
            self._count_finished(stream)
            self._remove(stream)

    def _read(self) -> None:
        """Read the tokens that the engine has generated."""
        now = time.perf_counter()
        for stream in list(self._running):
            for answer in stream.open_answers:
                read_tokens(stream, answer, now, self._ends)
            if any(is_ignored(answer) for answer in stream.open_answers):
                text = "the answer does not fit into the KV cache; request fewer tokens"
                self._end(stream, RequestError(FULL, text))

    def _decode(self, pause: float) -> None:
        """Decode the answers that are due to be sent, with one call for all."""
        answers = [
            answer
            for stream in self._running
            for answer in stream.answers
            if answer.needs_decoding and (stream.must_decode(answer, pause) or answer.has_ended)
        ]
        if not answers:
            return
        windows = [window for answer in answers for window in answer.detokenizer.windows()]
        texts = iter(self.tokenizer.decode(windows))
        for answer in answers:
            answer.add_text(next(texts), next(texts))
            if answer.reason and not answer.has_ended:
                answer.handle.stop()
            if answer.reason:
                answer.handle = None

    def _send(self, pause: float) -> None:
        for stream in [each for each in self._running if each.is_due(pause)]:
            is_listening = stream.listener.send(stream.next_part())
            if stream.is_done or not is_listening:
                self._count_finished(stream)
                self._remove(stream)
        for stream in self.open_streams():
            stream.listener.keep_alive()

    def _end(self, stream: Stream, error: RequestError) -> None:
        """End a request with an error."""
        stream.listener.send(error)
        self._remove(stream)

    def _end_all(self, error: RequestError) -> None:
        for stream in self.open_streams():
            self._end(stream, error)

    def _remove(self, stream: Stream) -> None:
        """Remove a request; the engine frees an answer when its handle is deleted."""
        with self._changed:
            for answer in stream.answers:
                if answer.handle is not None:
                    answer.handle.cancel()
                answer.handle = None
            for queue in (self._waiting, self._running):
                if stream in queue:
                    queue.remove(stream)

    def _drop_pipeline(self, error: Exception) -> None:
        """End the running requests after the engine failed; waiting requests get a new engine."""
        self._log(f"the engine failed, and is opened again: {error!r}")
        text = "the engine failed while it answered this request, and is restarting; try again"
        for stream in list(self._running):
            self._end(stream, RequestError(UNAVAILABLE, text))
        self._pipeline, self.cache_usage = None, 0.0

    def _reopen_pipeline(self) -> None:
        """Open the engine again; if this fails, end the waiting requests and try again later."""
        try:
            self._pipeline = self._open_pipeline()
            self.tokenizer = self._pipeline.get_tokenizer()
        except Exception:
            text = "the engine cannot be opened again; Triton's log has the reason"
            self._end_all(RequestError(UNAVAILABLE, text))
            time.sleep(REOPEN_SECONDS)
            raise
