"""At which rates batches are measured, and that they are measured again where that failed."""

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from millrace.models.common.errors import MillraceError, TransientError, WorkError
from millrace.models.config.serving_spec import ServingSpec
from millrace.serving.profile import measure
from millrace.serving.profile.measure import (
    CROWDED_STEP,
    FIRST_LOAD,
    MOST_LEVELS,
    STEP,
    TRIES,
    Sender,
    measure_times,
)
from millrace.serving.profile.search import Setup
from millrace.serving.profile.service_times import ServiceTimes
from millrace.serving.triton.open_loop import SentLoad
from millrace.serving.triton.version_folder import Artifact


@pytest.mark.parametrize("failures", [0, TRIES - 1, TRIES])
@pytest.mark.parametrize("error", [TransientError("Triton ended"), WorkError("no whole trace")])
def test_a_measurement_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, failures: int, error: MillraceError
) -> None:
    measured, tried = ServiceTimes((1.0,), (0.001,), ()), 0

    def measure_once(*_: object) -> ServiceTimes:
        nonlocal tried
        tried += 1
        if tried <= failures:
            raise error
        return measured

    monkeypatch.setattr(measure, "_measure", measure_once)

    def found() -> ServiceTimes:
        return measure_times(
            Artifact({}, "digest", "graph"), {}, ServingSpec(), Setup(1, 1), {1: 1}
        )

    if failures < TRIES:
        assert found() is measured
        assert tried == failures + 1
    else:
        with pytest.raises(type(error)):
            found()
        assert tried == TRIES


class Queue:
    """Stands for a model that answers one request after the other.

    Attributes:
        sent: the rates at which requests were sent.
    """

    def __init__(self, alone: float, most: float) -> None:
        self.triton = SimpleNamespace(load=lambda _: None)
        self._alone, self._most = alone, most
        self.sent: list[float] = []

    def send(self, due: np.ndarray, rows: np.ndarray) -> SentLoad:
        """Answer requests as slowly as a queue of that load would."""
        rate = len(due) / due[-1] if due[-1] else 0.0
        if rate:
            self.sent.append(rate)
        seconds = self._alone / (1 - rate / self._most) if rate < self._most else 10.0
        return SentLoad(due, due, due + seconds, {}, 0.0)


def test_rates_rise_in_smaller_steps_until_requests_wait_long() -> None:
    alone = 0.001
    queue: Any = Queue(alone, most=1.7 / alone)
    Sender(Setup(1, 1), {1: 1.0}, 64).send_levels(queue, ServingSpec())
    steps = np.array([after / before for before, after in pairwise(queue.sent)])
    assert queue.sent[0] == pytest.approx(FIRST_LOAD / alone, rel=0.2)
    assert len(steps) < MOST_LEVELS
    assert steps[:3] == pytest.approx(STEP, rel=0.3)
    assert steps[-1] == pytest.approx(CROWDED_STEP, rel=0.2)
    assert queue.sent[-2] < 1.7 / alone < queue.sent[-1]


def test_no_more_than_so_many_rates_are_measured() -> None:
    queue: Any = Queue(0.001, most=np.inf)
    Sender(Setup(1, 1), {1: 1.0}, 64).send_levels(queue, ServingSpec())
    assert len(queue.sent) == MOST_LEVELS
