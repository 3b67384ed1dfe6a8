"""An open loop of streamed answers: prompts are sent when they are due, whatever is under way.

As in `open_loop`, times count from the moment at which a request was due.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from millrace.models.common.errors import MillraceError
from millrace.models.common.installation import Endpoint
from millrace.serving.triton.streams.stream_client import AsyncStreamClient, Sampling

WAIT_SECONDS = 20.0
"""Seconds after the last request was due in which its answer still counts."""


@dataclass(frozen=True)
class StreamedLoad:
    """What became of the requests of an open loop.

    Attributes:
        due: float64 `[n]`, seconds from the start at which each request was due, ascending.
        sent: float64 `[n]`, seconds at which it was sent.
        first: float64 `[n]`, seconds at which its first token was there; infinite without an
            answer.
        last: float64 `[n]`, seconds at which its last token was there; infinite without one.
        prompts: int64 `[n]`, tokens of each prompt, as the model counted them.
        answers: int64 `[n]`, tokens of each answer.
        errors: how many requests failed, by error message.
        cpu_seconds: CPU time of the generator's process.
    """

    due: NDArray[np.float64]
    sent: NDArray[np.float64]
    first: NDArray[np.float64]
    last: NDArray[np.float64]
    prompts: NDArray[np.int64]
    answers: NDArray[np.int64]
    errors: Mapping[str, int]
    cpu_seconds: float

    @property
    def ttft(self) -> NDArray[np.float64]:
        """Seconds from when each request was due to its first token, float64 `[n]`."""
        is_answered = np.isfinite(self.last)
        return np.asarray(np.where(is_answered, self.first, np.inf) - self.due, np.float64)

    @property
    def tpot(self) -> NDArray[np.float64]:
        """Mean seconds of each token after the first, float64 `[n]`.

        0 for an answer of one token, and infinite without an answer.
        """
        further = np.maximum(self.answers - 1, 1)
        with np.errstate(invalid="ignore"):
            found = np.where(self.answers == 1, 0.0, (self.last - self.first) / further)
        return np.asarray(np.where(np.isfinite(self.last), found, np.inf), np.float64)

    @property
    def tpot_with_first(self) -> NDArray[np.float64]:
        """Mean seconds of each token, the wait for the first one included, float64 `[n]`."""
        return np.asarray((self.last - self.due) / np.maximum(self.answers, 1), np.float64)

    @property
    def lateness(self) -> NDArray[np.float64]:
        """Seconds by which each request was sent late, float64 `[n]`."""
        return self.sent - self.due

    @property
    def client_share(self) -> float:
        """Share of one core that the generator used while answers were under way."""
        ended = self.last[np.isfinite(self.last)]
        return self.cpu_seconds / float(ended.max()) if len(ended) else 0.0

    def part(self, many: int) -> "StreamedLoad":
        """Return what became of the first requests."""
        return StreamedLoad(
            *(self.due[:many], self.sent[:many], self.first[:many], self.last[:many]),
            *(self.prompts[:many], self.answers[:many], self.errors, self.cpu_seconds),
        )


def send_streams(
    endpoint: Endpoint,
    model: str,
    due: NDArray[np.float64],
    requests: Sequence[tuple[str, int]],
    *,
    looks: Sequence[int] = (),
    is_decided: Callable[[StreamedLoad], bool] = lambda _: False,
) -> StreamedLoad:
    """Send prompts when they are due, and return what became of them.

    Args:
        endpoint: the server.
        model: the model.
        due: float64 `[n]`, seconds from the start, ascending.
        requests: the prompt of each request, and how many tokens its answer has.
        looks: after how many answered requests `is_decided` is asked, ascending.
        is_decided: whether no more requests are needed, from those so far.
    """
    run = _Run(endpoint, model, due, requests)
    before = time.process_time()
    asyncio.run(run.send(list(looks), is_decided))
    run.cpu_seconds = time.process_time() - before
    return run.load().part(run.count)


class _Run:
    """One run of the generator, in one event loop."""

    def __init__(
        self,
        endpoint: Endpoint,
        model: str,
        due: NDArray[np.float64],
        requests: Sequence[tuple[str, int]],
    ) -> None:
        self._endpoint, self._model, self._due, self._requests = endpoint, model, due, requests
        many = len(due)
        self._sent, self._first, self._last = (np.full(many, np.inf) for _ in range(3))
        self._prompts, self._answers = (np.zeros(many, np.int64) for _ in range(2))
        self._has_ended = np.zeros(many, bool)
        self._errors: Counter[str] = Counter()
        self._begin = 0.0
        self.count = 0
        self.cpu_seconds = 0.0

    def load(self) -> StreamedLoad:
        """Return what is known so far."""
        return StreamedLoad(
            *(self._due, self._sent, self._first, self._last, self._prompts, self._answers),
            *(dict(self._errors), self.cpu_seconds),
        )

    async def send(self, looks: list[int], is_decided: Callable[[StreamedLoad], bool]) -> None:
        """Send until the last request, or until a look decides; then wait for the answers."""
        due = self._due.tolist()
        limit = WAIT_SECONDS + (due[-1] if due else 0.0)
        async with AsyncStreamClient(self._endpoint) as client:
            await _connect(client, self._model)
            self._begin = time.perf_counter()
            under_way = set()
            for number, when in enumerate(due):
                if (
                    looks
                    and self._has_ended[: looks[0]].all()
                    and is_decided(self.load().part(looks.pop(0)))
                ):
                    break
                await asyncio.sleep(max(0.0, when - self._now()))
                self._sent[number] = self._now()
                self.count = number + 1
                under_way.add(asyncio.create_task(self._receive(client, number, limit)))
            if under_way:
                await asyncio.wait(under_way)

    async def _receive(self, client: AsyncStreamClient, number: int, limit: float) -> None:
        """Read one answer, and note its times."""
        prompt, many = self._requests[number]
        sampling = Sampling(temperature=0, max_tokens=many, ignore_eos=True)
        first, tokens = np.inf, 0
        try:
            stream = client.generate(
                self._model, prompt, sampling, deadline=max(0.1, limit - self._now())
            )
            async for piece in stream:
                tokens += piece.output_tokens[0]
                if tokens and not np.isfinite(first):
                    first = self._now()
                self._prompts[number] = piece.input_tokens
            self._answers[number] = tokens
            self._first[number], self._last[number] = first, self._now()
        except MillraceError as error:
            self._errors[str(error)] += 1
        self._has_ended[number] = True

    def _now(self) -> float:
        return time.perf_counter() - self._begin


async def _connect(client: AsyncStreamClient, model: str) -> None:
    """Open the connection before the first request is due."""
    with suppress(MillraceError):
        await client.complete(model, "a", Sampling(max_tokens=1))
