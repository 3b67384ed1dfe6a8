import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from millrace.models.common.errors import TransientError
from millrace.models.ray.jobs import RayJob
from millrace.serving.batch.cluster import cluster_job
from millrace.serving.batch.cluster.cluster_job import follow, stop
from millrace.serving.batch.cluster.job_log import Line

AWAY = TransientError("nothing answers", seen="connection refused")
Look = tuple[str | None, str] | TransientError
"""The status of the job, None where nobody knows it, and its log."""


@dataclass
class Cluster:
    """Tells of one job, another thing at each look, the last one for ever; time is what is waited.

    Attributes:
        looks: what there is to see.
        time: seconds that were waited.
        stops: how often the job was asked to end.
    """

    looks: Sequence[Look]
    time: float = 0.0
    stops: int = 0
    waits: list[float] = field(default_factory=list)

    def job(self, id: str) -> RayJob | None:
        now = self.looks[min(len(self.waits), len(self.looks) - 1)]
        if isinstance(now, TransientError):
            raise now
        return None if now[0] is None else RayJob(id, now[0])

    def log(self, id: str) -> str:
        now = self.looks[min(len(self.waits), len(self.looks) - 1)]
        assert not isinstance(now, TransientError)
        return now[1]

    def stop(self, id: str) -> None:
        self.stops += 1

    def wait(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.time += seconds

    def now(self) -> float:
        return self.time


def followed(cluster: Cluster) -> tuple[RayJob, list[str]]:
    lines: list[Line] = []
    job, _ = follow(cluster, "a", lines.append, wait=cluster.wait, now=cluster.now)
    assert {line.level for line in lines} <= {logging.INFO}
    return job, [line.text for line in lines]


def test_every_line_is_told_once_to_the_end_of_the_job() -> None:
    one, two = "millrace INFO one\n", "millrace INFO two\n"
    looks = [("PENDING", ""), ("RUNNING", one), ("RUNNING", one), ("SUCCEEDED", one + two)]
    job, lines = followed(Cluster(looks))
    assert (job.status, lines) == ("SUCCEEDED", ["one", "two"])


def test_a_connection_that_is_lost_for_a_while_loses_and_repeats_no_line() -> None:
    one, two = "millrace INFO one\n", "millrace INFO two\n"
    looks: list[Look] = [("RUNNING", one), AWAY, AWAY, ("RUNNING", one), ("FAILED", one + two)]
    job, lines = followed(Cluster(looks))
    assert (job.status, lines) == ("FAILED", ["one", "two"])


def test_a_cluster_that_stays_away_is_gone() -> None:
    cluster = Cluster([("RUNNING", ""), AWAY])
    with pytest.raises(TransientError, match="gone") as told:
        followed(cluster)
    assert told.value.seen == "connection refused"
    assert cluster_job.PATIENCE_SECONDS < cluster.time < cluster_job.PATIENCE_SECONDS + 5


def test_a_job_that_the_cluster_forgot_is_not_waited_for() -> None:
    cluster = Cluster([("RUNNING", ""), (None, "")])
    with pytest.raises(TransientError, match="no longer knows the job"):
        followed(cluster)
    assert cluster.time < 5


def test_a_long_log_is_fetched_less_often() -> None:
    cluster = Cluster([("RUNNING", "x" * 5_000_000), ("SUCCEEDED", "")])
    followed(cluster)
    assert cluster.waits == [5.0]


def test_a_stop_waits_for_the_end() -> None:
    cluster = Cluster([("RUNNING", ""), AWAY, ("STOPPED", "")])
    assert stop(cluster, "a", wait=cluster.wait, now=cluster.now)
    assert cluster.stops == 3


@pytest.mark.parametrize("look", [("RUNNING", ""), AWAY])
def test_a_stop_does_not_wait_for_ever(look: Look) -> None:
    cluster = Cluster([look])
    assert not stop(cluster, "a", wait=cluster.wait, now=cluster.now)
    assert cluster.time <= cluster_job.STOP_SECONDS


def test_a_job_that_never_came_to_be_is_stopped() -> None:
    cluster = Cluster([(None, "")])
    assert stop(cluster, "a", wait=cluster.wait, now=cluster.now)
