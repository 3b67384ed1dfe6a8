"""What actors tell, of each run apart."""

import pytest

from millrace.serving.batch.monitoring.progress_counter import ActorProgress, new_meter
from millrace.serving.batch.monitoring.throughput import Work

pytestmark = pytest.mark.usefixtures("local_ray")


def test_runs_share_a_process_and_nothing_else() -> None:
    first, second = new_meter(), new_meter()
    assert first.counter is second.counter
    first.record_opened("a", 0.5)
    first.add("a", 1.0, Work(10))
    first.add("a", 2.0, Work(5))
    second.add("a", 4.0, Work(1))
    assert first.read() == {"a": ActorProgress(0.5, 3.0, Work(15))}
    first.forget()
    assert first.read() == {}
    assert second.read() == {"a": ActorProgress(0.0, 4.0, Work(1))}
