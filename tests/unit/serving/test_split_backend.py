"""The parts of the traffic splitter that need no Triton."""

import json
import threading
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from millrace.serving.triton.backends.traffic_split.split_key import hash_to_share, sticky_value
from millrace.serving.triton.backends.traffic_split.split_observations import (
    BLOCK,
    LatencyBlocks,
    compare_rows,
)
from millrace.serving.triton.backends.traffic_split.split_threads import DaemonPool


@dataclass
class Tensor:
    title: str
    array: np.ndarray

    def name(self) -> str:
        return self.title

    def as_numpy(self) -> np.ndarray:
        return self.array


@dataclass
class Request:
    values: dict[str, Any] = field(default_factory=dict)
    correlation: int | str = 0
    id: str = ""
    tensors: tuple[Tensor, ...] = (Tensor("x", np.zeros(3, np.float32)),)

    def parameters(self) -> str:
        return json.dumps(self.values)

    def correlation_id(self) -> int | str:
        return self.correlation

    def request_id(self) -> str:
        return self.id

    def inputs(self) -> tuple[Tensor, ...]:
        return self.tensors


def key(request: Request) -> bytes:
    return sticky_value(request, "user")


def test_the_parameter_comes_before_the_ids_and_those_before_the_inputs() -> None:
    assert key(Request({"user": "ann"}, 7, "r1")) == b"ann"
    assert key(Request({"other": "ann"}, 7, "r1")) == b"7"
    assert key(Request({}, "session", "r1")) == b"session"
    assert key(Request({}, 0, "r1")) == b"r1"
    assert key(Request()).startswith(b"x")


def test_zero_is_a_key() -> None:
    assert key(Request({"user": 0}, 7)) == b"0"


def test_inputs_are_told_apart_whatever_their_order_and_type() -> None:
    a, b = Tensor("a", np.array([1.0])), Tensor("b", np.array([b"t"], object))
    assert key(Request(tensors=(a, b))) == key(Request(tensors=(b, a)))
    other = Tensor("b", np.array([b"u"], object))
    assert key(Request(tensors=(a, b))) != key(Request(tensors=(a, other)))


def test_shares_are_spread_evenly_and_stay() -> None:
    shares = np.array([hash_to_share("m:1:2:", str(user).encode()) for user in range(20_000)])
    for weight in (0.01, 0.1, 0.5):
        assert (shares < weight).mean() == pytest.approx(weight, abs=4 * (weight / 20_000) ** 0.5)
    assert hash_to_share("m:1:2:", b"0") == shares[0]


def test_another_rollout_picks_others() -> None:
    users = [str(user).encode() for user in range(1000)]
    one, other = ({u for u in users if hash_to_share(s, u) < 0.1} for s in ("m:1:2:", "m:2:3:"))
    assert 0 < len(one & other) < len(one) / 2


def alike(ours: Any, theirs: Any, tolerance: float = 0.01) -> list[bool]:
    return compare_rows({"y": np.asarray(ours)}, {"y": np.asarray(theirs)}, tolerance).tolist()


def test_scores_agree_by_their_best_column() -> None:
    assert alike([[0.1, 0.9], [0.6, 0.4]], [[0.4, 0.6], [0.4, 0.6]]) == [True, False]


def test_single_numbers_agree_by_their_relative_distance() -> None:
    ours, theirs = [[100.0], [100.0], [0.0], [-5.0]], [[100.9], [101.5], [0.0], [5.0]]
    assert alike(ours, theirs) == [True, False, True, False]
    assert alike([1.0, 2.0], [1.001, 3.0]) == [True, False]


def test_labels_and_texts_agree_when_they_are_equal() -> None:
    assert alike([[1], [2]], [[1], [3]]) == [True, False]
    words, others = np.array([[b"a"], [b"b"]], object), np.array([[b"a"], [b"c"]], object)
    assert alike(words, others) == [True, False]


def test_what_is_not_a_number_agrees_with_no_number() -> None:
    nan = float("nan")
    assert alike([[1.0], [1.0]], [[nan], [1.0]]) == [False, True]
    assert alike([[0.0, 1.0]], [[0.0, nan]]) == [False]


def test_a_row_agrees_when_all_its_outputs_do() -> None:
    ours = {"a": np.array([1, 2]), "b": np.array([1.0, 2.0])}
    theirs = {"a": np.array([1, 2]), "b": np.array([1.0, 3.0])}
    assert compare_rows(ours, theirs, 0.01).tolist() == [True, False]
    assert compare_rows(ours, {"a": ours["a"]}, 0.01).tolist() == [False, False]


def test_another_shape_agrees_in_no_row() -> None:
    assert alike([[1.0], [2.0]], [[1.0]]) == [False, False]


def test_a_crew_does_what_it_is_given() -> None:
    crew = DaemonPool(2)
    given = [crew.submit(lambda n=n: n * n, wait=True) for n in range(10)]  # type: ignore[misc]
    assert [call and call.result(5) for call in given] == [n * n for n in range(10)]
    crew.close(5)


def test_a_busy_crew_takes_nothing_more_or_makes_wait() -> None:
    crew, go = DaemonPool(1), threading.Event()
    first = crew.submit(lambda: go.wait(5), wait=True)
    assert crew.submit(lambda: None, wait=False) is None
    threading.Timer(0.1, go.set).start()
    start = time.monotonic()
    assert crew.submit(lambda: None, wait=True) is not None
    assert time.monotonic() - start > 0.05
    assert first is not None
    assert first.result(5)
    crew.close(5)


def test_a_job_that_fails_frees_its_thread() -> None:
    crew = DaemonPool(1)
    call = crew.submit(lambda: 1 // 0, wait=True)
    assert call is not None
    assert isinstance(call.exception(5), ZeroDivisionError)
    later = crew.submit(lambda: 1, wait=True)
    assert later is not None
    assert later.result(5) == 1
    crew.close(5)


def test_a_crew_closes_in_time_though_a_job_hangs() -> None:
    crew, go = DaemonPool(2), threading.Event()
    crew.submit(lambda: go.wait(10), wait=True)
    start = time.monotonic()
    crew.close(0.2)
    assert time.monotonic() - start < 2
    go.set()


def test_a_block_is_counted_when_it_is_whole() -> None:
    blocks = LatencyBlocks()
    grown = [blocks.add(seconds=0.001 * (1 + n % 2)) for n in range(2 * BLOCK)]
    told = [each for each in grown if each]
    mean = np.log([1000, 2000]).mean()
    assert [position for position, each in enumerate(grown) if each] == [BLOCK - 1, 2 * BLOCK - 1]
    for each in told:
        assert each["log_latency"] == pytest.approx(mean)
        assert each["log_latency_squares"] == pytest.approx(mean**2)


def test_late_answers_of_a_block_are_counted() -> None:
    blocks = LatencyBlocks(bound=0.01)
    grown = [blocks.add(seconds) for seconds in [0.02] * 3 + [0.01] * (2 * BLOCK - 3)]
    names = ("timed_answers", "late_answers", "late_answers_squares")
    found = [tuple(each[name] for name in names) for each in grown if each]
    assert found == [(BLOCK, 3, 9), (BLOCK, 0, 0)]


def test_counters_never_fall() -> None:
    blocks = LatencyBlocks()
    assert all(min(blocks.add(1e-9).values(), default=0) >= 0 for _ in range(BLOCK))
