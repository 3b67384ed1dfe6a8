import pytest

from millrace.models.config.serving_spec import ServingSpec
from millrace.serving.release import trial
from millrace.serving.release.trial import (
    BASE_LIMITS,
    MIN_MEMORY,
    load_seconds,
    memory_limit,
    subprocess_limits,
)

GIB = 1 << 30


def test_a_large_model_has_more_time_and_memory_than_a_small_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trial, "memory_bytes", lambda: 256 * GIB)
    small, large = subprocess_limits(1000), subprocess_limits(2 * GIB)
    assert small.seconds - BASE_LIMITS.seconds < 0.01
    assert large.seconds == BASE_LIMITS.seconds + 128
    assert large.memory == BASE_LIMITS.memory + 8 * GIB
    assert load_seconds(ServingSpec(), 2 * GIB) == load_seconds(ServingSpec(), 0) + 128


@pytest.mark.parametrize(
    ("size", "machine", "limit"),
    [
        (0, 256 * GIB, 16 * GIB),
        (0, 24 * GIB, 12 * GIB),
        (1 * GIB, 24 * GIB, 16 * GIB),
        (8 * GIB, 24 * GIB, 18 * GIB),
        (0, 2 * GIB, MIN_MEMORY),
    ],
)
def test_a_trial_leaves_memory_to_what_serves(size: int, machine: int, limit: int) -> None:
    assert memory_limit(size, machine) == limit
