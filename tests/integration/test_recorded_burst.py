"""What the event model says of a burst that a real guard recorded, beside what really happened."""

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from millrace.models.common.digest import digest_of
from millrace.models.common.installation import Installation
from millrace.models.config.serving_spec import ServingSpec
from millrace.models.inference.features import FEATURES
from millrace.serving.guard.arrivals_table import RecordedArrivals, read_arrivals
from millrace.serving.profile import measure
from millrace.serving.profile.expectation import expect, prepare
from millrace.serving.profile.measure import measure_times
from millrace.serving.profile.profiled_model import MODEL, profiled_model
from millrace.serving.profile.replay import FEWEST, judge
from millrace.serving.profile.search import BatchConfiguration, Setup
from millrace.serving.profile.twin import Arrivals, poisson
from millrace.serving.triton.graph.triton_graph import artifact_of_graph
from tests.integration.planted import GOLDEN, busy
from tests.integration.test_profile import SHORT

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the wheel is for Linux")
FLUSH_SECONDS = 5.0


@pytest.fixture(scope="module", autouse=True)
def _short() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        for module, values in SHORT.items():
            for name, value in values.items():
                patched.setattr(module, name, value)
        patched.setattr(measure, "FEWEST_REQUESTS", 30)
        yield


def recorded(installation: Installation, name: str, since: float, many: int) -> RecordedArrivals:
    """Return the requests since a time, as soon as there are so many."""
    deadline = time.monotonic() + FLUSH_SECONDS
    while True:
        found = read_arrivals(installation, (name,), since, time.time())
        if len(found.times) >= many or time.monotonic() > deadline:
            return found
        time.sleep(0.1)


def test_a_recorded_burst_has_the_verdict_of_its_real_replay(tmp_path: Path) -> None:
    """A burst within the capacity meets the goal, and one far beyond it does not."""
    bound_ms, one = 1000.0, BatchConfiguration(Setup(1, 1), 1)
    file = tmp_path / "model.onnx"
    file.write_bytes(busy(200, 4, depends=True).model)
    artifact, inputs = artifact_of_graph(file, digest_of(file)), {FEATURES: GOLDEN}
    times = measure_times(artifact, inputs, ServingSpec(), one.setup, {1: 1.0}, largest_batch=1)
    capacity = 1 / times.idle_seconds(1)
    with profiled_model(artifact, inputs) as model:
        model.serve(one)
        home = model.triton.repository.staging.parent
        installation = Installation(home, "", "")
        for share, is_missed in ((0.4, False), (3.0, True)):
            begin, many = time.time(), int(max(FEWEST + 50, 1.2 * share * capacity))
            rate = share * capacity
            arrivals = poisson(rate, many, 1, np.random.default_rng(1))
            model.send(arrivals.times, arrivals.rows)
            found = recorded(installation, MODEL, begin, many)
            real = judge(Arrivals(found.times, found.rows), found.seconds, bound_ms)
            expected = expect(prepare(found, 16), one, times, bound_ms, cores=2)
            assert any(each.is_missed for each in real) == is_missed
            assert bool(expected.missed_minutes) == is_missed
