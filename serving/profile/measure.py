"""Measure how long the batches of a version take: alone, and at rising rates."""

import logging
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from millrace.models.common.arrays import Array
from millrace.models.common.errors import TransientError, WorkError
from millrace.models.common.own_folder import own_folder
from millrace.models.config.serving_spec import ServingSpec
from millrace.serving.profile.batch_times import service_times
from millrace.serving.profile.profiled_model import MODEL, ProfiledModel, profiled_model
from millrace.serving.profile.search import BatchConfiguration, Setup, draw_sizes
from millrace.serving.profile.service_times import ServiceTimes
from millrace.serving.triton.open_loop import SentLoad
from millrace.serving.triton.request_trace import wait_for_trace
from millrace.serving.triton.version_folder import Artifact

WARM_UP = 20
BURSTS = (1, 2, 4, 8, 16, 32, 64)
"""Rows of the batches that are measured on an idle machine."""
BURST_SECONDS, FEWEST_BURSTS, MOST_BURSTS = 0.6, 8, 40
LONGEST_BURSTS = 4.0
BURST_DELAY = 20_000
"""Queue delay in microseconds by which the requests of a burst become one batch."""
LEVEL_SECONDS, FEWEST_REQUESTS, MOST_REQUESTS = 4.0, 250, 16_000
LONGEST_LEVEL = 10.0
"""Seconds after which even the fewest requests are not waited for."""
FIRST_LOAD, STEP, CROWDED_STEP, MOST_LEVELS = 0.15, 2.0, 2.0**0.5, 9
"""The first rate as a share of what single requests reach, one after the other; each further rate
is so many times as high, less where requests wait for each other."""
CROWDED, SATURATED = 2.0, 8.0
"""Median latencies as multiples of that of a single request: from the first on requests wait for
each other, and from the second on no higher rate is measured."""
LARGEST_BATCH = 64
TRACE = "trace.json"
TRIES = 3
"""How often a measurement is tried: something else on the machine may end Triton, or its trace."""

log = logging.getLogger("millrace")


def measure_times(
    artifact: Artifact,
    rows: Mapping[str, Array],
    serving: ServingSpec,
    setup: Setup,
    sizes: Mapping[int, float],
    largest_batch: int = LARGEST_BATCH,
) -> ServiceTimes:
    """Measure how long batches take with a number of instances and threads.

    Batches of each size are made by bursts: the first requests keep all instances busy, so that the
    others become one batch. Between them, requests of independent clients show what a single
    request takes beside.

    Args:
        artifact: the version.
        rows: rows to send, by input.
        serving: its settings, of which instances, threads and batching are replaced.
        setup: instances and threads.
        sizes: rows of a request, and how often each occurs.
        largest_batch: most rows of a batch; 0 if Triton does not batch the model's requests.

    Raises:
        WorkError: the model does not answer, or the trace is not whole, each of several times.
        TransientError: Triton ended, each of several times.
    """
    tries = 0
    while True:
        tries += 1
        sender = Sender(setup, sizes, max(largest_batch, *sizes))
        try:
            return _measure(sender, artifact, rows, serving)
        except (TransientError, WorkError) as error:
            if tries == TRIES:
                raise
            log.info("measuring again: %s (%s)", error.what, error.seen)


def _measure(
    sender: "Sender", artifact: Artifact, rows: Mapping[str, Array], serving: ServingSpec
) -> ServiceTimes:
    with own_folder("millrace-trace-") as folder:
        file = folder / TRACE
        with profiled_model(artifact, rows, file) as model:
            sender.send_bursts(model, serving)
            sender.send_levels(model, serving)
            # at its end it may be too late: a Triton that ends too slowly is killed
            model.triton.client.end_trace()
            traced = wait_for_trace(file).get(MODEL)
            at_guard = model.at_guard(sum(len(sizes) for _, sizes in model.sent)).seconds
    return service_times(model.sent, traced, sender.bursts, sender.setup.instances, at_guard)


class Sender:
    """Sends what shows the times of one setup.

    Attributes:
        bursts: how many of the runs are bursts, which come first.
    """

    def __init__(self, setup: Setup, sizes: Mapping[int, float], largest: int) -> None:
        self.setup, self.sizes, self.largest = setup, sizes, largest
        self.bursts = 0
        self._drawn = np.random.default_rng(0)

    def send_bursts(self, model: ProfiledModel, serving: ServingSpec) -> None:
        """Send requests together, so that each burst is one batch."""
        delayed = BatchConfiguration(self.setup, self.largest, BURST_DELAY)
        model.triton.load(serving.model_copy(update=delayed.settings))
        biggest = np.full(1, max(self.sizes))
        for _ in range(WARM_UP * self.setup.instances):
            _answer_seconds(model, biggest)
        before = len(model.sent)
        for rows in sorted({min(rows, self.largest) for rows in BURSTS}):
            spent, count = 0.0, 0
            while spent < LONGEST_BURSTS and (
                count < FEWEST_BURSTS or (spent < BURST_SECONDS and count < MOST_BURSTS)
            ):
                spent += _answer_seconds(model, self._draw_rows(rows))
                count += 1
        self.bursts = len(model.sent) - before
        del model.sent[:before]

    def send_levels(self, model: ProfiledModel, serving: ServingSpec) -> None:
        """Send requests of independent clients, at higher and higher rates.

        Lower ones never follow: after more requests than Triton can take, all are slower.
        """
        configuration = BatchConfiguration(self.setup, self.largest)
        model.triton.load(serving.model_copy(update=configuration.settings))
        biggest = np.full(1, max(self.sizes))
        alone = float(np.median([_answer_seconds(model, biggest) for _ in range(WARM_UP)]))
        rate = FIRST_LOAD / alone
        for _ in range(MOST_LEVELS):
            usual = np.median(self._send_level(model, rate).latency)
            if usual > SATURATED * alone:
                break
            rate *= CROWDED_STEP if usual > CROWDED * alone else STEP

    def _send_level(self, model: ProfiledModel, rate: float) -> SentLoad:
        many = int(np.clip(rate * LEVEL_SECONDS, FEWEST_REQUESTS, MOST_REQUESTS))
        many = min(many, max(1, int(rate * LONGEST_LEVEL)))
        due = np.cumsum(self._drawn.exponential(1 / rate, many))
        return _answered(model.send(due, draw_sizes(self.sizes, many, self._drawn)))

    def _draw_rows(self, most: int) -> NDArray[np.int64]:
        """Draw requests that have about so many rows together, and at least one request."""
        drawn = draw_sizes(self.sizes, most, self._drawn)
        return drawn[: max(1, int((np.cumsum(drawn) <= most).sum()))]


def _answer_seconds(model: ProfiledModel, rows: NDArray[np.int64]) -> float:
    """Send requests at once, and return the seconds until the last answer."""
    return float(_answered(model.send(np.zeros(len(rows)), rows)).ended.max())


def _answered(load: SentLoad) -> SentLoad:
    """Return a load of which every request was answered.

    Raises:
        WorkError: a request was not answered.
    """
    if load.errors:
        raise WorkError(
            "the model did not answer on the Triton of its profile",
            seen=f"{dict(load.errors)}: {load.first_error}",
        )
    return load
