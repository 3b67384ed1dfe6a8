import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from millrace.models.config.slo_spec import SloSpec
from millrace.serving.batch.beside_online.pressure import (
    AGAIN_SECONDS,
    CALM_SECONDS,
    LONGEST_CALM,
    UNKNOWN_SECONDS,
    Standing,
    decide,
    largest_pressure,
)
from millrace.serving.triton.served_load import ModelLoad

QUICK = SloSpec(rate=100, p99_ms=20)
STREAM = SloSpec(rate=3, ttft_p99_ms=300, tpot_p99_ms=60)
IDLE = ModelLoad("quick", "1", 0.0, 0.0, None, None, None, None, None, None)


def loaded(model: str = "quick", **values: float) -> ModelLoad:
    return replace(IDLE, model=model, **values)


def followed(
    share: Callable[[float, bool], float | None], seconds: float, every: float = 0.5
) -> list[bool]:
    """Return whether the job stood still, at each look, with a share that depends on it."""
    standing, found = Standing(), []
    for look in range(int(seconds / every)):
        standing = decide(standing, look * every, share(look * every, standing.is_paused))
        found.append(standing.is_paused)
    return found


def test_a_request_is_as_late_as_its_batch_and_the_tail_of_the_queue() -> None:
    found = largest_pressure({"quick": QUICK}, [loaded(compute_ms=1.0, queue_ms=2.0)])
    assert found is not None
    assert found.share == pytest.approx((1 + 2 * math.log(100)) / 20)


def test_the_model_that_is_nearest_to_its_bound_counts() -> None:
    loads = [
        loaded(compute_ms=1.0, queue_ms=0.1),
        loaded("chat", ttft_p99_ms=30.0, tpot_p99_ms=54.0),
        loaded("without a goal", compute_ms=900.0, queue_ms=900.0),
    ]
    found = largest_pressure({"quick": QUICK, "chat": STREAM}, loads)
    assert str(found) == "chat is at 90% of its tpot_p99_ms"


def test_without_requests_there_is_no_pressure() -> None:
    assert largest_pressure({"quick": QUICK}, [IDLE]) is None


def test_a_calm_goal_never_stops_a_job() -> None:
    assert not any(followed(lambda *_: 0.79, 600))


def test_a_pause_ends_when_it_was_calm_for_a_while() -> None:
    found = followed(lambda now, _: 1.0 if 10 <= now < 15 else 0.1, 60)
    assert found.index(True) == 20
    assert sum(found) == (5 + CALM_SECONDS) / 0.5


def test_a_single_late_look_starts_the_calm_anew() -> None:
    found = followed(lambda now, _: 1.0 if now == 10 or now == 11.5 else 0.1, 30)
    assert sum(found) * 0.5 == 1.5 + 0.5 + CALM_SECONDS


def test_a_job_that_disturbs_each_time_stands_still_nearly_all_the_time() -> None:
    found = followed(lambda _, is_paused: 0.1 if is_paused else 1.5, 1800)
    assert sum(found[1200:]) / len(found[1200:]) > 0.98


def test_the_calm_is_short_again_after_a_long_peace() -> None:
    late = {0.0, 5.0, 5.0 + 4 * AGAIN_SECONDS}
    found = followed(lambda now, _: 1.0 if now in late else 0.1, 8 * AGAIN_SECONDS)
    ends = [n for n in range(1, len(found)) if found[n - 1] and not found[n]]
    starts = [n for n in range(len(found)) if found[n] and (n == 0 or not found[n - 1])]
    assert [b - a for a, b in zip(starts, ends, strict=True)] == [5, 9, 5]


def test_the_calm_has_a_limit() -> None:
    standing, now = Standing(), 0.0
    for _ in range(20):
        standing = decide(standing, now, 1.0)
        standing = replace(decide(standing, now + 1, 0.0))
        now += standing.calm + 2
        standing = decide(standing, now, 0.0)
    assert standing.calm == LONGEST_CALM


def test_metrics_that_are_gone_neither_stop_a_job_nor_hold_it_for_good() -> None:
    assert not any(followed(lambda *_: None, 60))
    found = followed(lambda now, _: 1.0 if now < 5 else None, 60)
    assert sum(found) * 0.5 == pytest.approx(5 + UNKNOWN_SECONDS)
