from models.specs.serving import ServingSpec
from serving.trial_limits import ALONE, alone_limits, load_seconds

GIB = 1 << 30


def test_a_large_model_has_more_time_and_memory_than_a_small_one() -> None:
    small, large = alone_limits(1000), alone_limits(2 * GIB)
    assert small.seconds - ALONE.seconds < 0.01
    assert large.seconds == ALONE.seconds + 128
    assert large.memory == ALONE.memory + 8 * GIB
    assert load_seconds(ServingSpec(), 2 * GIB) == load_seconds(ServingSpec(), 0) + 128
