"""A batch job as an MLflow run: metrics while the job runs, results and plots at its end."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType

from millrace.models.common.installation import Installation
from millrace.models.common.pictures import png_of
from millrace.models.config.pipeline import Pipeline
from millrace.models.registry.mlflow_pages import version_page
from millrace.models.registry.tracking import TrackedRun, client
from millrace.serving.batch.monitoring.agreement import Agreement
from millrace.serving.batch.monitoring.batch_plots import runs_figure, throughput_figure
from millrace.serving.batch.monitoring.batch_report import SECONDS_PER_DAY, BatchReport
from millrace.serving.batch.monitoring.progress_counter import ActorProgress
from millrace.serving.batch.monitoring.throughput import (
    Sample,
    SecondsLeft,
    Unit,
    Work,
    cost_per_million,
    forecast,
    is_short,
    per_day,
    seconds_left,
    throughput,
)
from millrace.tasks.progress import log

EXPERIMENT = ".batch"
"""Suffix of the experiment's name, after the pipeline's name, which has no dot."""
LAST_RUNS = 30
LIVE_SECONDS = 10.0
DESCRIPTION = "mlflow.note.content"
FINGERPRINT, DATE = "millrace.fingerprint", "millrace.date"
"""Tags that together identify a job."""
VERSION = "millrace.model_version"
"""Tag: the version that scores, which retention keeps while the run is open."""
APPROVED = "millrace.approved"
"""Tag: whether the version was the approved one, which Triton serves or would serve."""
NO_TEXTS: Mapping[str, str] = MappingProxyType({})
PER_DAY, STEADY_PER_DAY = "per_day", "steady_per_day"


@dataclass
class BatchRun:
    """The progress of a job, logged to MLflow while it runs.

    Attributes:
        run: the open run.
        total: rows of the input; None if the number is not known.
        deadline: when the job must end; None: no deadline.
        on_late: called once with what to say if the job will miss its deadline.
        seconds_left: returns the seconds until the end, of the samples, all rows, and their unit.
        samples: the progress so far.
        actors: what each actor has done.
    """

    run: TrackedRun
    total: int | None
    deadline: datetime | None = None
    on_late: Callable[[str], None] = lambda _: None
    seconds_left: SecondsLeft = seconds_left
    samples: list[Sample] = field(default_factory=list)
    actors: Mapping[str, ActorProgress] = field(default_factory=dict)
    _logged: float = field(default_factory=time.monotonic)
    _warned: bool = False

    def take(self, sample: Sample, actors: Mapping[str, ActorProgress], resumed: int) -> None:
        """Log the work that is written so far, and warn once if the job will miss its deadline."""
        self.samples.append(sample)
        self.actors = actors
        if time.monotonic() - self._logged < LIVE_SECONDS:
            return
        self._logged = time.monotonic()
        metrics = {f"live.{sample.work.unit}": float(sample.work.count(sample.work.unit))}
        if self.total is not None:
            left = self.total - resumed
            seconds = self.seconds_left(self.samples, left, "rows")
            if seconds is not None:
                found = forecast(seconds, datetime.now().astimezone(), self.deadline)
                metrics["live.seconds_left"] = found.seconds_left
                self._warn(found.ends_at, late=found.is_late)
        self.run.log_metrics(metrics, step=int(sample.seconds))

    def _warn(self, ends_at: datetime, *, late: bool) -> None:
        if late and not self._warned and self.deadline is not None:
            self._warned = True
            text = f"its deadline of {self.deadline:%H:%M}: at this rate it ends at {ends_at:%H:%M}"
            log.warning("the job will miss %s", text)
            self.on_late(f"the batch job will miss {text}")

    def log_agreement(self, found: Agreement) -> None:
        """Log how the job compares with the live model, even if the job is not committed."""
        self.run.log_metrics(found.metrics())
        self.run.set_tags({"millrace.agreement": found})

    def finish(
        self, pipeline: Pipeline, report: BatchReport, texts: Mapping[str, str] = NO_TEXTS
    ) -> None:
        """Log the result of the job, with its plots.

        Args:
            pipeline: the job's pipeline.
            report: the job's report.
            texts: other files of the run, by artifact path.
        """
        measured = metrics_of(report, self.samples, self.actors, pipeline.batch.price_per_hour)
        unit = throughput(self.samples).unit
        self.run.log_metrics(measured)
        self.run.set_tags(
            {
                FINGERPRINT: report.fingerprint,
                VERSION: report.model_version,
                "millrace.model_digest": report.model_digest,
                "millrace.table": report.table,
                "millrace.table_version": report.table_version,
                "millrace.dead_letters": report.dead_letters,
                DATE: report.date,
                **({} if report.approved is None else {APPROVED: report.approved}),
                DESCRIPTION: description_of(report, per_day=measured[PER_DAY], unit=unit),
            }
        )
        figures = {
            "plots/throughput.png": throughput_figure(self.samples),
            "plots/last_runs.png": runs_figure(_last_runs(self.run), unit),
        }
        self.run.log_report(texts, {path: png_of(each) for path, each in figures.items()})
        _end_dead_runs(self.run, report)

    def finish_late(self, pipeline: Pipeline, report: BatchReport) -> None:
        """Log the result of a job whose process died after the commit.

        Only the mean speed of such a job is known.

        Args:
            pipeline: the job's pipeline.
            report: the report stored in the commit's metadata.
        """
        rows = max(report.scored - report.resumed, 0)
        # The tokens in the commit include those of rows from earlier runs.
        share = rows / report.scored if report.scored else 0.0
        tokens = (round(share * (count or 0)) for count in (report.tokens_in, report.tokens_out))
        self.samples = [Sample(report.seconds, Work(rows, *tokens))]
        self.finish(pipeline, report)


def is_reported(installation: Installation, experiment: str, report: BatchReport) -> bool:
    """Return whether MLflow has a finished run of a job.

    Args:
        installation: where MLflow is.
        experiment: name of the experiment.
        report: the report stored in the metadata of the job's commit.
    """
    store = client(installation.tracking_uri)
    known = store.get_experiment_by_name(experiment)
    if known is None:
        return False
    return bool(store.search_runs([known.experiment_id], _that(report, "FINISHED"), max_results=1))


def _that(report: BatchReport, status: str) -> str:
    """Return MLflow's filter for the runs of a job that have the given status."""
    return (
        f"tags.`{FINGERPRINT}` = '{report.fingerprint}' and tags.`{DATE}` = '{report.date}' "
        f"and attributes.status = '{status}'"
    )


def description_of(report: BatchReport, per_day: float, unit: Unit) -> str:
    """Return what a job did, in Markdown, with a link to the version on MLflow's pages.

    Args:
        report: the job's report.
        per_day: the job's throughput per day, in `unit`.
        unit: the unit of the job's work.
    """
    version = version_page("", report.model, report.model_version).removeprefix("/")
    daily = f"{per_day:,.0f} {unit} a day"
    if is_short(report.seconds):
        daily += f", extrapolated from {report.seconds:.0f} s"
    return (
        f"{report.scored:,} of {report.rows:,} rows were scored with "
        f"[{report.model} version {report.model_version}]({version}) into the partition "
        f"`{report.date}` of `{report.table}`, version {report.table_version}. {daily}."
    )


def metrics_of(
    report: BatchReport,
    samples: Sequence[Sample],
    actors: Mapping[str, ActorProgress],
    price_per_hour: float | None = None,
) -> dict[str, float]:
    """Return the metrics of a finished job.

    Tokens and rows per day count only what this run committed, divided by its wall time.

    Args:
        report: the job's report.
        samples: the work written by the time of each sample; the last is from the job's end.
        actors: what each actor has done.
        price_per_hour: cost of the machines per hour; None: the job's cost is not computed.
    """
    measured = throughput(samples)
    done = samples[-1].work if samples else Work()
    # Of duplicate rows, only the first is committed, though all were written.
    share = min(max(report.scored - report.resumed, 0) / done.rows, 1.0) if done.rows else 0.0
    answered = sum((each.work for each in actors.values()), Work())
    found = {
        "rows": float(report.rows),
        "scored": float(report.scored),
        "dead": float(report.dead),
        "resumed": float(report.resumed),
        "seconds": report.seconds,
        PER_DAY: per_day(share * done.count(measured.unit), report.seconds),
        "redone_rows": float(max(answered.rows - done.rows, 0)),
    }
    if measured.steady is not None:
        found[STEADY_PER_DAY] = measured.steady * SECONDS_PER_DAY
    if measured.peak is not None:
        found["peak_per_second"] = measured.peak
    units: Iterable[Unit] = ("tokens_in", "tokens_out") if report.tokens_in is not None else ()
    for unit in units:
        found[unit] = float(round(share * done.count(unit)))
        found[f"{unit}_per_day"] = per_day(share * done.count(unit), report.seconds)
    if price_per_hour is not None:
        count = round(share * (done.tokens if units else done.rows))
        cost = cost_per_million(price_per_hour, report.seconds, count)
        name = f"cost_per_million_{'tokens' if units else 'rows'}"
        found |= {name: cost} if cost is not None else {}
    # Actors report when they opened their model and their busy seconds; vLLM engines do not.
    shares = [each.busy / report.seconds for each in actors.values() if each.opened]
    found |= {f"actor_{n}_utilisation": share for n, share in enumerate(sorted(shares))}
    return found


def _end_dead_runs(run: TrackedRun, report: BatchReport) -> None:
    """End the MLflow runs that a job's dead processes left open.

    Every other open run is of a dead process, because a job never runs twice at once.
    """
    for each in run.client.search_runs([run.experiment_id], _that(report, "RUNNING")):
        if each.info.run_id != run.run_id:
            run.client.set_terminated(each.info.run_id, "KILLED")


def _last_runs(run: TrackedRun) -> list[tuple[datetime, float, float | None]]:
    """Return start, work per day and steady work per day of the last runs, including this run."""
    runs = run.client.search_runs([run.experiment_id], max_results=LAST_RUNS)
    return [
        (
            datetime.fromtimestamp(each.info.start_time / 1000).astimezone(),
            each.data.metrics[PER_DAY],
            each.data.metrics.get(STEADY_PER_DAY),
        )
        for each in runs
        if PER_DAY in each.data.metrics
    ]
