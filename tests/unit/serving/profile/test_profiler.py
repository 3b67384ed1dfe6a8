"""How a profile gets from what the event model expects to one configuration and its proof."""

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from millrace.models.config.serving_spec import ServingSpec
from millrace.models.config.slo_spec import SloSpec
from millrace.serving.profile.batch_level import Level
from millrace.serving.profile.batch_workload import BatchTarget, BatchWorkload, configured, rank
from millrace.serving.profile.profiler import (
    LOOKS,
    RARE_LOOKS,
    Profiler,
    measure_capacity,
    plan_proof,
    usual_p99,
)
from millrace.serving.profile.proof import schedule_for
from millrace.serving.profile.ranking import choose, shortlist
from millrace.serving.profile.search import BatchConfiguration, Setup
from millrace.serving.profile.service_times import ServiceTimes
from millrace.serving.profile.workload import Considered, Effort, late_after, never_late
from millrace.serving.triton.open_loop import SentLoad

GOAL = SloSpec(rate=20, p99_ms=40)
A, B, C, D = (Setup(instances, 1) for instances in (1, 2, 3, 4))


@dataclass
class FakeModel:
    """Answers within the goal's bound up to a rate, but for a share of the requests.

    Attributes:
        most: the rate.
        late: share of requests that are late, here and there.
        lost: share that is not answered, at the start.
        paused: share that is late, one after the other.
        sent: rates and rows of what was sent.
    """

    most: float
    late: float = 0.0
    lost: float = 0.0
    paused: float = 0.0
    sent: list[tuple[float, np.ndarray]] = field(default_factory=list)

    def send(self, due: np.ndarray, rows: np.ndarray, **_: Any) -> SentLoad:
        rate = len(due) / float(due[-1])
        self.sent.append((rate, rows))
        latency = np.full(len(due), 0.001 if rate <= self.most else 0.041)
        if self.late:
            latency[int(0.5 / self.late) :: int(1 / self.late)] = 0.041
        latency[: int(self.paused * len(due))] = 0.041
        latency[: int(self.lost * len(due))] = np.inf
        return SentLoad(due, due, due + latency, {}, 0.0)

    def backend_memory(self) -> int:
        return 0


def constant(seconds: float) -> ServiceTimes:
    one = np.ones(1)
    level = Level(
        1.0, one, one, one.astype(np.int64), one > 1, 0 * one, one, np.zeros(1), np.zeros(1)
    )
    return ServiceTimes((1.0,), (seconds,), (level,))


def considered(
    setup: Setup, predicted: float, size: int = 8, measured: float | None = None
) -> Considered:
    return Considered(BatchConfiguration(setup, size), {"p99_ms": 2.0}, predicted, measured)


def most_within(model: FakeModel, start: float, goal: SloSpec = GOAL) -> float:
    target = BatchTarget(model, goal)  # type: ignore[arg-type]
    return measure_capacity(target, goal, start, Effort())


def test_the_configuration_of_a_pipeline_file_is_made_of_its_settings() -> None:
    serving = ServingSpec(
        max_batch_size=16,
        max_queue_delay_microseconds=500,
        instance_count=2,
        intra_op_thread_count=3,
    )
    found = configured(serving)
    assert found == BatchConfiguration(Setup(instances=2, threads=3), 16, 500, 16)
    small = serving.model_copy(update={"preferred_batch_size": 4})
    assert ServingSpec.model_validate(configured(small).settings) == small


def test_what_takes_most_requests_comes_first() -> None:
    slow, fast, two, worse = (BatchConfiguration(each, 1) for each in (A, B, C, D))
    times = {A: constant(0.020), B: constant(0.002), C: constant(0.060), D: constant(0.090)}
    ranked = rank([worse, slow, two, fast], times, GOAL)
    # of those that never keep the bound, the one that is nearer to it is first
    assert [each.configuration for each in ranked] == [fast, slow, two, worse]
    assert ranked[0].predicted > 5 * ranked[1].predicted > 0
    assert [each.predicted for each in ranked[2:]] == [0, 0]
    assert [each.at_goal["p99_ms"] > 40 for each in ranked] == [False, True, True, True]


def test_one_configuration_of_each_setup_is_tried_first() -> None:
    ranked = [
        considered(A, 100),
        considered(A, 95, 16),
        considered(A, 94, 32),
        considered(B, 90),
        considered(B, 85, 16),
        considered(C, 80),
        considered(D, 75),
    ]
    found = shortlist(ranked, ranked[0].configuration, 3)
    assert found == [ranked[0], ranked[3], ranked[5]]


def test_the_next_best_are_tried_too_where_few_setups_are_good() -> None:
    ranked = [
        considered(A, 100),
        considered(A, 95, 16),
        considered(A, 94, 32),
        considered(B, 90),
        considered(C, 69),
    ]
    found = shortlist(ranked, ranked[0].configuration, 3)
    assert found == [ranked[0], ranked[3], ranked[1]]


def test_what_is_clearly_worse_is_not_tried() -> None:
    ranked = [considered(A, 100), considered(B, 69), considered(C, 0)]
    assert shortlist(ranked, ranked[0].configuration, 3) == ranked[:1]


@pytest.mark.parametrize("current", [0, 1, 2])
def test_the_configuration_of_the_pipeline_file_is_always_tried_once(current: int) -> None:
    ranked = [considered(A, 100), considered(B, 50), considered(C, 0)]
    found = shortlist(ranked, ranked[current].configuration, 3)
    assert found == [ranked[0], *([ranked[current]] if current else [])]


def test_something_is_tried_where_nothing_is_expected_to_keep_the_bound() -> None:
    ranked = [considered(each, 0) for each in (A, B, C, D)]
    assert shortlist(ranked, ranked[3].configuration, 3) == ranked


@pytest.mark.parametrize(
    ("present", "other", "is_other"),
    [
        (100.0, 90.0, False),
        (100.0, 104.0, False),
        (100.0, 106.0, True),
        (0.0, 5.0, True),
        (0.0, 0.0, False),
    ],
)
def test_the_configuration_of_the_pipeline_file_stays_unless_another_takes_clearly_more(
    present: float, other: float, is_other: bool
) -> None:
    kept = considered(A, 70, measured=present)
    best = considered(B, 99, measured=other)
    worst = considered(C, 100, measured=0.0)
    chosen, current = choose([worst, best, kept], kept.configuration)
    assert current is kept
    assert chosen is (best if is_other else kept)


@pytest.mark.parametrize("most", [40.0, 90.0, 170.0, 270.0, 400.0])
def test_capacity_is_found_from_a_start_that_is_wrong(most: float) -> None:
    model = FakeModel(most)
    found = most_within(model, 160)
    # a run of some hundred requests has its rate to within some percent
    assert most / 1.45 <= found <= 1.1 * most
    assert len(model.sent) == Effort().probes


def test_capacity_is_a_rate_that_was_within_the_bound() -> None:
    model = FakeModel(200)
    found = most_within(model, 180)
    within = [rate for rate, _ in model.sent if rate <= 200]
    assert found == pytest.approx(max(within), rel=0.1)


def test_there_is_no_capacity_where_no_rate_is_within_the_bound() -> None:
    assert most_within(FakeModel(0), 100) == 0


@pytest.mark.parametrize("way", ["late", "lost"])
def test_capacity_is_of_99_in_100_requests(way: str) -> None:
    few, many = FakeModel(1e9, **{way: 0.008}), FakeModel(1e9, **{way: 0.02})
    assert most_within(few, 500) > 500
    # of the 20 requests of the last, lowest rate none is late
    assert most_within(many, 500) < 5


def test_a_pause_of_the_machine_is_not_held_against_a_rate() -> None:
    assert most_within(FakeModel(1e9, paused=0.15), 2000) > 2000
    assert most_within(FakeModel(1e9, paused=0.6), 2000) < 50


@pytest.mark.parametrize(("requests", "parts"), [(1, 1), (599, 1), (600, 3), (999, 3), (1000, 5)])
def test_a_run_is_looked_at_in_parts(requests: int, parts: int) -> None:
    values = np.zeros(requests)
    values[: (requests + 1) // 2] = 1.0  # more than half of the parts
    assert usual_p99(values) == 1.0
    values[:] = 0.0
    values[-requests // parts :] = 1.0  # all of the last part
    assert usual_p99(values) == (1.0 if parts == 1 else 0.0)


def test_capacity_is_of_requests_with_the_rows_of_the_goal() -> None:
    model = FakeModel(1e9)
    goal = SloSpec(rate=20, p99_ms=40, rows={2: 1, 8: 3})
    most_within(model, 500, goal)
    rows = np.concatenate([rows for _, rows in model.sent])
    assert set(rows.tolist()) == {2, 8}
    assert (rows == 8).mean() == pytest.approx(0.75, abs=0.03)


SECONDS = 90.0
FEW, MANY = schedule_for(LOOKS[:2]), schedule_for(LOOKS)
FREQUENT, RARE = MANY.looks[-1] / SECONDS, FEW.looks[-1] / SECONDS
"""Rates from which all the looks of a proof, or the first two, are in its time."""
NONE, FEWEST = schedule_for(RARE_LOOKS).looks
MOST = schedule_for(LOOKS[:3]).looks[-1]


@pytest.mark.parametrize("rate", [1.01 * FREQUENT, 5000])
@pytest.mark.parametrize("capacity", [0.0, 1e6])
def test_a_goal_is_proved_at_its_own_rate(rate: float, capacity: float) -> None:
    assert plan_proof(rate, capacity, SECONDS) == (rate, MANY)


def test_rare_requests_are_looked_at_less_often() -> None:
    assert plan_proof(0.99 * FREQUENT, 1e6, SECONDS) == (
        0.99 * FREQUENT,
        schedule_for(LOOKS[:-1]),
    )
    assert plan_proof(1.01 * RARE, 1e6, SECONDS) == (1.01 * RARE, FEW)
    assert plan_proof(1.01 * RARE / 2, 1e6, 2 * SECONDS) == (1.01 * RARE / 2, FEW)


@pytest.mark.parametrize(
    ("rate", "capacity", "proved"),
    [
        (0.01, 1e6, MOST / SECONDS),
        (5.0, 80.0, 20.0),
        (0.01, 30.0, FEWEST / SECONDS),
        (0.01, 8.0, 4.0),
        (5.0, 8.0, 5.0),
        (0.01, 0.0, 0.01),
    ],
)
def test_rare_requests_are_sent_more_often_but_not_beyond_half_of_the_capacity(
    rate: float, capacity: float, proved: float
) -> None:
    often, schedule = plan_proof(rate, capacity, SECONDS)
    assert often == pytest.approx(proved)
    first, last = schedule.looks
    assert NONE < first < last
    assert last == pytest.approx(max(FEWEST, proved * SECONDS), abs=1)


class Target(BatchTarget):
    """Takes any configuration."""

    def serve(self, configuration: Any) -> None:
        """Do nothing."""


@pytest.mark.parametrize(
    ("is_late", "tried"), [(never_late, {"A", "B", "C"}), (lambda: True, {"A", "C"})]
)
def test_where_it_is_late_the_first_and_the_pipeline_files_are_tried(
    is_late: Callable[[], bool], tried: set[str]
) -> None:
    ranked = [considered(A, 100), considered(B, 90), considered(C, 80)]
    workload = SimpleNamespace(effort=Effort(), current=ranked[2].configuration)
    said = list[str]()
    profiler = Profiler(workload, GOAL, said.append, is_late)  # type: ignore[arg-type]
    found = profiler.decide(Target(FakeModel(95), GOAL), ranked)  # type: ignore[arg-type]
    named = {A: "A", B: "B", C: "C"}
    measured = {named[each.configuration.group] for each in found.considered if each.measured}
    assert measured == tried
    assert len(found.considered) == 3
    assert found.current.configuration == ranked[2].configuration
    assert ("not tried, as the time is over" in " ".join(said)) == (len(tried) == 2)


def test_where_it_is_late_only_the_pipeline_files_instances_and_threads_are_measured() -> None:
    serving = ServingSpec(max_batch_size=8, instance_count=2, intra_op_thread_count=1)
    read = list[str]()

    class Kept:
        def read(self, name: str, _: object) -> ServiceTimes:
            read.append(name)
            return constant(0.002)

    artifact, said = SimpleNamespace(serving=serving), list[str]()
    for is_late, many in ((lambda: True, 1), (never_late, 3)):
        workload = BatchWorkload(artifact, {}, GOAL, 2, Kept(), said.append, is_late)  # type: ignore[arg-type]
        workload.__dict__["is_batched"] = True
        ranked = workload.rank()
        assert {each.configuration.group for each in ranked} == set(workload.times)
        assert len(workload.times) == many
    assert read[0] == "times-2x1"
    assert sum("not tried" in each for each in said) == 2


def test_a_time_limit_counts_from_where_it_is_set() -> None:
    assert late_after(0.0)()
    assert not late_after(60.0)()
