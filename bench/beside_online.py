"""BO1 to BO3: a batch job on the machine of a model that answers online, within its goal.

The online model gets requests of independent clients for the whole job. The job scores rows of 64
numbers with a wide network, in one actor for each core.
"""

import multiprocessing
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from bench import batch
from bench.measure import Row, measure_in_turn, measure_rows
from bench.server import batch_of, mlp
from millrace.models.common.digest import digest_of
from millrace.models.common.hardware import this_machine
from millrace.models.common.installation import Endpoint
from millrace.models.common.low_priority import with_low_priority
from millrace.models.config.serving_spec import ServingSpec
from millrace.models.config.slo_spec import SloSpec
from millrace.models.ray.cluster import connect_to_ray
from millrace.serving.batch.beside_online.beside_forecast import seconds_left_beside
from millrace.serving.batch.beside_online.online_watch import OnlineWatch
from millrace.serving.batch.beside_online.pause_file import PauseFile
from millrace.serving.batch.input.find_input import open_input
from millrace.serving.batch.monitoring.throughput import Sample
from millrace.serving.batch.row_job import RowJob
from millrace.serving.batch.scoring import RunOptions, Target, score
from millrace.serving.profile.profiled_model import MODEL, profiled_model
from millrace.serving.profile.twin import poisson
from millrace.serving.triton.graph.triton_graph import artifact_of_graph

WIDTH = 64
GOAL = SloSpec(rate=200, p99_ms=20)
ROUNDS = 3
PASSES = 2
"""How often the rows of `bench.batch` are scored in one job."""
HALF = 0.5
"""Share of the work at which the end of a job is foreseen."""


def rows(wanted: Collection[str]) -> Iterator[Row]:
    """Measure the wanted rows."""
    with ExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory()))
        with with_low_priority():
            opened.enter_context(connect_to_ray("local", this_machine().cores))
        online = opened.enter_context(online_model(folder))
        stand = Stand(folder, online)
        measures: dict[str, Callable[[], Row]] = {
            "BO1": partial(within_the_goal, stand),
            "BO2": partial(beside_an_idle_model, stand),
            "BO3": partial(foreseen, stand),
        }
        yield from measure_rows(measures, wanted)


@dataclass
class Online:
    """A served model, and clients of it, in a process of their own.

    Attributes:
        endpoint: where it is served.
        pipe: to the process of the clients.
    """

    endpoint: Endpoint
    pipe: Connection

    @contextmanager
    def under_load(self, seconds: list[float]) -> Iterator[None]:
        """Send requests while the block runs, and append their latencies, in seconds."""
        self.pipe.send("send")
        try:
            yield
        finally:
            self.pipe.send("stop")
            seconds += self.pipe.recv()


@contextmanager
def online_model(folder: Path) -> Iterator[Online]:
    """Serve a small network, for clients that do not wait for each other."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(there, folder), daemon=True)
    process.start()
    there.close()  # so that the end of that process ends the wait for its words
    yield Online(here.recv(), here)
    here.send("end")
    process.join()


def _serve(pipe: Connection, folder: Path) -> None:
    os.setsid()  # clients are no part of the job's session, which shares its cores among its own
    file = mlp(folder / "online.onnx", (WIDTH, 256, 256, 10))
    with profiled_model(artifact_of_graph(file, digest_of(file)), batch_of(WIDTH, 64)) as model:
        model.triton.load(ServingSpec())
        model.send(np.zeros(1), np.ones(1, np.int64))
        pipe.send(model.triton.endpoint)
        while pipe.recv() == "send":
            found, stop = list[float](), threading.Event()
            thread = threading.Thread(target=_wait_for_stop, args=(pipe, stop))
            thread.start()
            seed = 0
            while not stop.is_set():
                many = int(2 * GOAL.rate)
                arrivals = poisson(GOAL.rate, many, 1, np.random.default_rng(seed))
                found += model.send(arrivals.times, arrivals.rows).latency.tolist()
                seed += 1
            thread.join()
            pipe.send(found)


def _wait_for_stop(pipe: Connection, stop: threading.Event) -> None:
    pipe.recv()
    stop.set()


@dataclass
class Stand:
    """Rows to score beside a served model."""

    folder: Path
    online: Online

    def __post_init__(self) -> None:
        self._rows = batch.Stand(self.folder, this_machine().cores)
        self._input = self.folder / "input"
        self._input.mkdir()
        for number in range(PASSES):
            (self._input / f"{number}.parquet").hardlink_to(self._rows.rows)
        self._jobs = 0

    def job(self, *, yields: bool = True) -> tuple[float, OnlineWatch, list[Sample]]:
        """Score all rows; return the seconds, what was watched, and the progress."""
        self._jobs += 1
        table = str(self.folder / f"beside{self._jobs}")
        stand, samples = self._rows, list[Sample]()
        job = RowJob("m", 1, "d", stand.onnx, stand.encoding, ())
        pause = PauseFile(self.folder / "batch.paused")
        goals = {MODEL: GOAL} if yields else {}
        with OnlineWatch(goals, lambda: [self.online.endpoint], pause) as watch:
            options = RunOptions(stand.actors, 1.0, pause=pause if yields else None)
            target = Target(table, f"{table}-dead", batch.DATE)
            start = time.perf_counter()
            found = open_input(str(self._input), job)
            score(found, job, target, options, lambda sample, *_: samples.append(sample))
            return time.perf_counter() - start, watch, samples

    def latency(self, *, yields: bool) -> tuple[float, float]:
        """Return the p99 in milliseconds of the requests beside a job, and the job's seconds."""
        found = list[float]()
        with self.online.under_load(found):
            seconds, _, _ = self.job(yields=yields)
        return p99_ms(found), seconds

    def alone(self) -> float:
        """Return the p99 in milliseconds of the requests without a job."""
        found = list[float]()
        with self.online.under_load(found):
            time.sleep(20)
        return p99_ms(found)


def p99_ms(seconds: list[float]) -> float:
    """Return the p99 in milliseconds."""
    return float(np.quantile(seconds, 0.99, method="higher")) * 1e3


def within_the_goal(stand: Stand) -> Row:
    """BO1: p99 of the requests beside a job ÷ the goal."""
    stand.job()
    alone, yielding, rude = list[float](), list[tuple[float, float]](), list[tuple[float, float]]()
    for _ in range(ROUNDS):
        alone.append(stand.alone())
        yielding.append(stand.latency(yields=True))
        rude.append(stand.latency(yields=False))
    (beside, beside_s), (rude_ms, rude_s) = (
        [*zip(*each, strict=True)] for each in (yielding, rude)
    )
    worst = max(beside) / (GOAL.p99_ms or 1)
    return Row(
        name="BO1",
        what=f"p99 of {GOAL.rate:.0f} requests/s beside a batch job ÷ the goal of "
        f"{GOAL.p99_ms:.0f} ms, the worst of {ROUNDS} jobs; without yielding "
        f"{statistics.median(rude_ms):.1f} ms, without a job {statistics.median(alone):.1f} ms",
        value=worst,
        goal="≤ 1",
        holds=worst <= 1,
        samples={
            "beside_ms": beside,
            "not_yielding_ms": rude_ms,
            "alone_ms": alone,
            "job_s": beside_s,
            "job_not_yielding_s": rude_s,
        },
    )


def beside_an_idle_model(stand: Stand) -> Row:
    """BO2: speed of a job that yields to a model without requests ÷ one that does not yield."""
    one, other = (lambda each=each: stand.job(yields=each)[0] for each in (False, True))
    rounds = measure_in_turn(one, other, ROUNDS)
    return Row(
        name="BO2",
        what="speed of a job beside a model without requests ÷ of one that yields to nobody",
        value=rounds.ratio,
        goal="≥ 0.8",
        holds=rounds.ratio >= 0.8,
        samples={"not_yielding_s": rounds.a, "yielding_s": rounds.b},
    )


def foreseen(stand: Stand) -> Row:
    """BO3: how far the end of a job under load was from what was foreseen half way."""
    ratios = []
    for _ in range(ROUNDS):
        with stand.online.under_load([]):
            _, watch, samples = stand.job()
        ratios.append(_ratio(watch, samples))
    worst = max(ratios, key=lambda each: abs(each - 1))
    return Row(
        name="BO3",
        what="seconds left that were foreseen half way ÷ real, the worst of "
        f"{ROUNDS} jobs under load",
        value=worst,
        goal="0.9 to 1.1",
        holds=abs(worst - 1) <= 0.1,
        samples={"ratio": ratios},
    )


def _ratio(watch: OnlineWatch, samples: list[Sample]) -> float:
    total = samples[-1].work.rows
    half = next(n for n, each in enumerate(samples) if each.work.rows >= HALF * total)
    now = samples[half].seconds
    moments = [each for each in watch.moments if each.seconds <= now]
    left = seconds_left_beside(samples[: half + 1], moments, total, this_machine().cores)
    end = next(each.seconds for each in samples if each.work.rows == total)
    return (left or 0.0) / (end - now)
