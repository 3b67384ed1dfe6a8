"""Follows a job while it runs: what is written, and what each actor has done."""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from threading import Event, Thread
from typing import Any, Self

import ray

from millrace.serving.batch.commit import Partition
from millrace.serving.batch.monitoring.progress_counter import Told, meter
from millrace.serving.batch.monitoring.throughput import Sample, Work

LOOK_SECONDS = 0.5
OnWork = Callable[[Sample, Mapping[str, Told], int], None]
"""Takes what is written so far, what each actor has done, and the rows that were there before."""


class Watch:
    """Tells how much is written, twice a second, while the block runs.

    Args:
        partition: where the job writes.
        on_work: called with each sample.
        resumed: rows that were there before.
    """

    def __init__(self, partition: Partition, on_work: OnWork, resumed: int) -> None:
        self.meter = meter()
        self.samples: list[Sample] = []
        self.told: Mapping[str, Told] = {}
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
            self._look()
        with suppress(ray.exceptions.RayError):
            self.meter.forget()

    def _watch(self) -> None:
        while not self._done.wait(LOOK_SECONDS):
            self._look()

    def _look(self) -> None:
        with suppress(OSError, ray.exceptions.RayError):  # the next look may succeed
            self._take()

    def _take(self) -> None:
        self._rows |= self._partition.rows(known=self._rows)
        self.told = self.meter.told()
        answered = sum((told.work for told in self.told.values()), Work())
        # What was answered and is not written yet is not done: tokens go by the rows' share.
        rows = sum(self._rows.values()) - self._resumed
        share = min(rows / answered.rows, 1.0) if answered.rows else 0.0
        tokens = (round(share * answered.tokens_in), round(share * answered.tokens_out))
        sample = Sample(time.perf_counter() - self._began, Work(rows, *tokens))
        self.samples.append(sample)
        self._on_work(sample, self.told, self._resumed)
