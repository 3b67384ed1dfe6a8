"""The progress of a running job: counted by its actors, and sampled by its driver.

At run time this module imports neither Ray Data nor pyarrow, because loading them would cost the
counter's process a second of CPU time while the actors start.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, Self
from uuid import uuid4

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from millrace.serving.batch.monitoring.throughput import Sample, Work

if TYPE_CHECKING:
    from millrace.serving.batch.commit import Partition

SAMPLE_SECONDS = 0.5


@dataclass
class ActorProgress:
    """What one actor has done.

    Attributes:
        opened: seconds to load the model; 0 if unknown.
        busy: seconds in the model.
        work: the rows that the actor has scored, and their tokens.
    """

    opened: float = 0.0
    busy: float = 0.0
    work: Work = field(default_factory=Work)


OnWork = Callable[[Sample, Mapping[str, ActorProgress], int], None]
"""Callback with the work written so far, each actor's progress, and the number of rows that earlier
runs wrote.
"""


class ProgressCounter:
    """Counts the work of the actors in all runs of a driver; it is a Ray actor itself."""

    def __init__(self) -> None:
        self._progress: dict[str, dict[str, ActorProgress]] = {}

    def record_opened(self, run: str, actor: str, seconds: float) -> None:
        """Record that an actor has loaded its model."""
        self._of(run, actor).opened = seconds

    def add(self, run: str, actor: str, seconds: float, work: Work) -> None:
        """Add what an actor has done in one call."""
        progress = self._of(run, actor)
        progress.busy += seconds
        progress.work += work

    def read(self, run: str) -> dict[str, ActorProgress]:
        """Return what each actor of a run has done."""
        return self._progress.get(run, {})

    def forget(self, run: str) -> None:
        """Delete the counts of a run."""
        self._progress.pop(run, None)

    def _of(self, run: str, actor: str) -> ActorProgress:
        return self._progress.setdefault(run, {}).setdefault(actor, ActorProgress())


@dataclass(frozen=True)
class Meter:
    """The counts of one run in the `ProgressCounter`, for the run's actors and its driver.

    Attributes:
        counter: the handle of the `ProgressCounter`.
        run: the run's id.
    """

    counter: Any
    run: str

    def record_opened(self, actor: str, seconds: float) -> None:
        """Report that an actor has loaded its model."""
        self.counter.record_opened.remote(self.run, actor, seconds)

    def add(self, actor: str, seconds: float, work: Work) -> None:
        """Report what an actor has done in one call."""
        self.counter.add.remote(self.run, actor, seconds, work)

    def read(self) -> dict[str, ActorProgress]:
        """Return what each actor has done.

        Raises:
            RayError: the counter does not answer.
        """
        progress: dict[str, ActorProgress] = ray.get(self.counter.read.remote(self.run))
        return progress

    def forget(self) -> None:
        """Delete the counts of the run."""
        self.counter.forget.remote(self.run)


_counters: dict[tuple[str, str], Any] = {}
"""The counter of this driver, by the ids of its node and its Ray job."""


def new_meter() -> Meter:
    """Return the meter of one run of a job.

    All runs of a driver share one counter, because a new counter's process would start together
    with the actors, and on two cores it would delay one of them. The counter reserves none of the
    job's CPUs. It stays on the driver's node, so that it dies only if the driver dies too.
    """
    context = ray.get_runtime_context()
    node, driver = context.get_node_id(), context.get_job_id()
    if (node, driver) not in _counters:
        _counters.clear()  # counters of a Ray that this process was connected to before
        here = NodeAffinitySchedulingStrategy(node, soft=False)
        options = {"num_cpus": 0, "max_restarts": -1, "scheduling_strategy": here}
        _counters[node, driver] = ray.remote(ProgressCounter).options(**options).remote()
    return Meter(_counters[node, driver], uuid4().hex)


class Watch:
    """Samples the progress of a job twice a second, while the block runs.

    Args:
        partition: where the job writes.
        on_work: called with each sample.
        resumed: rows that earlier runs have written.
    """

    def __init__(self, partition: "Partition", on_work: OnWork, resumed: int) -> None:
        self.meter = new_meter()
        self._partition, self._on_work, self._resumed = partition, on_work, resumed
        self._rows: dict[str, int] = {}
        self._began, self._done = time.perf_counter(), Event()
        self._thread = Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, failed: Any, *_: object) -> None:
        self._done.set()
        self._thread.join()
        if failed is None:
            self._try_sample()
        with suppress(ray.exceptions.RayError):
            self.meter.forget()

    def _watch(self) -> None:
        while not self._done.wait(SAMPLE_SECONDS):
            self._try_sample()

    def _try_sample(self) -> None:
        with suppress(OSError, ray.exceptions.RayError):  # the next sample may succeed
            self._sample()

    def _sample(self) -> None:
        self._rows |= self._partition.count_rows(known=self._rows)
        progress = self.meter.read()
        answered = sum((each.work for each in progress.values()), Work())
        # Rows that are scored but not written do not count; tokens count in the same proportion.
        rows = sum(self._rows.values()) - self._resumed
        share = min(rows / answered.rows, 1.0) if answered.rows else 0.0
        tokens = (round(share * answered.tokens_in), round(share * answered.tokens_out))
        sample = Sample(time.perf_counter() - self._began, Work(rows, *tokens))
        self._on_work(sample, progress, self._resumed)
