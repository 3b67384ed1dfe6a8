"""Step: score rows with the approved version into a partition of the predictions table."""

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from millrace.models.common.errors import InputError
from millrace.models.common.installation import EMBEDDED, Installation
from millrace.models.common.low_priority import with_low_priority
from millrace.models.config.pipeline import Pipeline
from millrace.models.data.schema import Column
from millrace.models.data.snapshots import (
    DEAD_LETTERS,
    PREDICTIONS,
    Snapshot,
    open_snapshot,
)
from millrace.models.data.sources.find_files import strip_file_scheme
from millrace.models.registry.mlflow_registry import registry_of
from millrace.models.registry.tracking import TrackedRun, tracked_run
from millrace.models.registry.version_files import ModelVersion, Package
from millrace.serving.batch.actor import ScoringJob
from millrace.serving.batch.beside_online.online_watch import OnlineWatch
from millrace.serving.batch.fingerprint import fingerprint_of
from millrace.serving.batch.input.find_input import Input
from millrace.serving.batch.monitoring.batch_report import BatchReport
from millrace.serving.batch.monitoring.progress_counter import ActorProgress
from millrace.serving.batch.monitoring.throughput import Sample
from millrace.serving.batch.scoring import RunOptions, Target, find_earlier_report, score
from millrace.serving.release.approval import Approver, Choice
from millrace.serving.release.ledger import ledger_of
from millrace.serving.release.release_state import DesiredVersion
from millrace.serving.triton.repository import Repository
from millrace.tasks import progress
from millrace.tasks.alerts import LATE, NOT_SCORED, Event, emit
from millrace.tasks.batch.agreement_sample import LiveCheck
from millrace.tasks.batch.batch_run import (
    DATE,
    EXPERIMENT,
    FINGERPRINT,
    VERSION,
    BatchRun,
    is_reported,
)
from millrace.tasks.batch.beside_online import BesideForecast, watch_online
from millrace.tasks.batch.drift_reference import open_training_snapshot
from millrace.tasks.batch.drift_report import Emit, report_drift
from millrace.tasks.batch.score_input import input_of, open_held_input
from millrace.tasks.batch.score_receipt import (
    Facts,
    Receipt,
    ScoreRequest,
    read_facts,
    warn_of_dead_letters,
    with_version,
)
from millrace.tasks.kinds.steps import KindSteps, steps_of
from millrace.tasks.plan_record import record_batch
from millrace.tasks.progress import log
from millrace.tasks.release import MlflowRegistry
from millrace.tasks.retry import step
from millrace.tasks.run_names import code_version

Connect = Callable[[], None]
MOST_PAUSED = 0.01
"""Share of its time that a job may have stood still, for the planner to learn from it."""


def is_connected() -> None:
    """Do nothing: this process is connected to Ray already."""


@step(timeout_seconds=24 * 3600, retries=1)
def score_rows(
    pipeline: Pipeline,
    installation: Installation,
    source: str | None,
    date: str,
    version: int | None = None,
    *,
    connect: Connect = is_connected,
) -> BatchReport:
    """Score a source with the approved version, pinned at the start, and commit one partition.

    Args:
        pipeline: names the model.
        installation: where tables and registry are.
        source: the input; None: the pipeline's `batch.input`. Without `batch.input`, the
            table of its dataset is scored.
        date: the partition, `YYYY-MM-DD`.
        version: the version to score with, approved or not; None: the approved version.
        connect: connects to Ray; called only if there is something to score.

    Raises:
        InputError: there is no approved version, or nothing to score.
    """
    reporter = RunReporter(code_version(pipeline.folder), emit)
    return scored(pipeline, installation, source, date, reporter, version, connect=connect)


@dataclass(frozen=True)
class RunReporter:
    """How a run is reported.

    Attributes:
        tags: tags of the MLflow run.
        emit: a function that is called with each event for Prefect.
    """

    tags: Mapping[str, str] = field(default_factory=dict)
    emit: Emit = emit


def scored(
    pipeline: Pipeline,
    installation: Installation,
    source: str | None,
    date: str,
    reporter: RunReporter,
    version: int | None = None,
    *,
    connect: Connect = is_connected,
) -> BatchReport:
    """Do what `score_rows` does, without Prefect; the arguments and errors are the same."""
    request = ScoreRequest(pipeline, installation, source, date, version)
    facts, chosen, choice = _choose_with_facts(request)
    log.log(
        logging.INFO if choice.is_approved else logging.WARNING,
        "%s version %s%s: %s",
        *(pipeline.name, chosen.version, "" if choice.is_approved else ", not approved"),
        choice.reason,
    )
    package = registry_of(installation, pipeline).fetch(chosen)
    steps = steps_of(chosen.kind)
    job = steps.batch_job(pipeline, package, installation, _dataset_columns(pipeline, installation))
    named = input_of(pipeline, installation, source, date)
    target = Target(
        installation.table(PREDICTIONS, pipeline.name),
        installation.table(DEAD_LETTERS, pipeline.name),
        date,
    )
    with open_held_input(strip_file_scheme(named), job, installation) as found:
        receipt = _write_receipt(request, facts, chosen, fingerprint_of(job, found.manifest))
        report = find_earlier_report(found, job, target)
        if report is None:
            job = _with_bins(steps, job, open_training_snapshot(chosen, installation))
            online = watch_online(pipeline, installation, fingerprint_of(job, found.manifest))
            log.info("score: connecting to Ray")
            with with_low_priority() if online.goals else nullcontext():
                connect()
            every = (pipeline, installation, package, found, job, target, reporter, choice)
            report = _tracked(*every, online)
        elif not is_reported(installation, f"{pipeline.name}{EXPERIMENT}", report):
            job = _with_bins(steps, job, open_training_snapshot(chosen, installation))
            _report_late(pipeline, installation, job, report, reporter)
    if receipt is not None:
        replace(receipt, is_reported=True).write(request)
    if report.replaced and not report.unchanged:
        log.warning("partition %s contained %s, now replaced", report.date, report.replaced)
    warn_of_dead_letters(report)
    if report.dead and not report.unchanged:
        text = f"{report.dead} rows of {report.date} have no prediction"
        details = {"date": report.date, "table": report.dead_letters}
        reporter.emit(Event(NOT_SCORED, pipeline.name, text, details))
    return report


def _choose_with_facts(request: ScoreRequest) -> tuple[Facts | None, ModelVersion, Choice]:
    """Return the version to score with, and the facts that the choice followed from.

    The first choice of a version may write the release table. So the version is chosen again if the
    facts have changed meanwhile; if they change again, they are None, and the job has no receipt.
    """
    facts = read_facts(request)
    found = chosen_version(request.pipeline, request.installation, request.version)
    if facts is None:
        return None, *found
    after = read_facts(request)
    if after != facts:
        facts = after
        found = chosen_version(request.pipeline, request.installation, request.version)
        after = read_facts(request)
    return (facts if facts == after else None), *found


def _write_receipt(
    request: ScoreRequest, facts: Facts | None, scores: ModelVersion, fingerprint: str
) -> Receipt | None:
    """Write down what the job follows from; None if that is not certain."""
    if facts is None:
        return None
    receipt = Receipt(with_version(facts, scores), scores.version, fingerprint)
    receipt.write(request)
    return receipt


def _with_bins(steps: KindSteps, job: ScoringJob, snapshot: Snapshot | None) -> ScoringJob:
    """Return the job with the drift bins of the snapshot, if the snapshot still exists."""
    return job if snapshot is None else steps.with_bins(job, snapshot)


def chosen_version(
    pipeline: Pipeline, installation: Installation, version: int | None = None
) -> tuple[ModelVersion, Choice]:
    """Return the version to score with: the approved version, or the one that the user names.

    Args:
        pipeline: names the model, and says whether a version must be signed.
        installation: where the registry and the release table are.
        version: the version to score with; None: the approved version.

    Raises:
        InputError: there is no such version, or the registry no longer has the live version.
    """
    model, release_registry = pipeline.name, MlflowRegistry(installation, pipeline)
    registry = release_registry.registry
    repository = Repository(installation.model_repository, installation.staging)
    approver = Approver(release_registry, ledger_of(installation), repository)
    if version is not None:
        named = registry.version(model, version)
        return named, approver.choose_named(model, DesiredVersion(version, named.digest))
    choice = approver.choose(model)
    number = choice.desired.version
    hint = (
        f"move the alias champion to another version, or name a version of {model} with `--version`"
    )
    try:
        found = registry.version(model, number)
    except InputError as error:
        what = f"version {number} of {model} is live, but is no longer in the registry"
        raise InputError(what, seen=error.what, hint=hint) from error
    if found.digest != choice.desired.digest:
        raise InputError(
            f"version {number} of {model} is live, but its file in the registry has changed",
            seen=f"sha256 {found.digest}",
            valid=f"sha256 {choice.desired.digest}",
            hint=hint,
        )
    return found, choice


def _tracked(
    pipeline: Pipeline,
    installation: Installation,
    package: Package,
    found: Input,
    job: ScoringJob,
    target: Target,
    reporter: RunReporter,
    choice: Choice,
    online: OnlineWatch,
) -> BatchReport:
    """Score the input, and report the job in an MLflow run."""
    fingerprint, rows = fingerprint_of(job, found.manifest), found.about_rows()
    with (
        _run_of(pipeline, installation, target.date, fingerprint, reporter, job.version) as run,
        progress.bar("score", rows, "rows") as bar,
        online,
    ):
        run.log_params({"batch": pipeline.batch.model_dump(mode="json"), "input": found.source})
        run.log_scored_input(found.source, fingerprint, rows)

        def warn_late(text: str) -> None:
            reporter.emit(Event(LATE, pipeline.name, text, {"date": target.date}))

        tracked = BatchRun(run, rows, _deadline(pipeline), warn_late)
        if online.goals:
            tracked.seconds_left = BesideForecast(installation, online).seconds_left

        def take(sample: Sample, actors: Mapping[str, ActorProgress], resumed: int) -> None:
            bar.update(resumed + sample.work.rows)
            tracked.take(sample, actors, resumed)

        check = LiveCheck(
            job, package, installation, pipeline.batch.max_disagreement, tracked.log_agreement
        )
        how = replace(
            _run_options(pipeline, installation),
            approved=choice.is_approved,
            approval=choice.reason,
            pause=online.pause if online.goals else None,
        )
        report = score(found, job, target, how, take, check)
        if not report.unchanged:
            paused = online.paused_seconds
            plan: Mapping[str, str] = {}
            if paused <= MOST_PAUSED * report.seconds:  # else the time says little of the machine
                plan = record_batch(pipeline, installation, package.version, report)
            tracked.finish(pipeline, report, plan)
            if online.goals:
                run.log_metrics({"paused_seconds": paused})
            _report_drift(run, pipeline, job, report, reporter)
    return report


def _report_late(
    pipeline: Pipeline,
    installation: Installation,
    job: ScoringJob,
    report: BatchReport,
    reporter: RunReporter,
) -> None:
    """Report a job whose process died after its commit and before its report."""
    of_report = (report.date, report.fingerprint, reporter, report.model_version)
    with _run_of(pipeline, installation, *of_report) as run:
        BatchRun(run, report.rows).finish_late(pipeline, report)
        _report_drift(run, pipeline, job, report, reporter)


@contextmanager
def _run_of(
    pipeline: Pipeline,
    installation: Installation,
    date: str,
    fingerprint: str,
    reporter: RunReporter,
    version: int,
) -> Iterator[TrackedRun]:
    """Open the MLflow run of a job; while it is open, retention keeps the version."""
    own = {"millrace.model": pipeline.name, FINGERPRINT: fingerprint, DATE: date}
    tags = {**reporter.tags, **own, VERSION: str(version)}
    name = f"{pipeline.name}{EXPERIMENT}"
    with tracked_run(installation, name, tags, system_metrics=False) as run:
        run.rename(f"{pipeline.name} {date}")
        yield run


def _report_drift(
    run: TrackedRun, pipeline: Pipeline, job: ScoringJob, report: BatchReport, reporter: RunReporter
) -> None:
    every = (*job.bins, *job.output_bins)
    report_drift(run, report, every, pipeline.batch.max_drift, reporter.emit)


def _run_options(pipeline: Pipeline, installation: Installation) -> RunOptions:
    """Return how a job runs on the Ray that this process is connected to."""
    wanted, most = pipeline.batch.num_actors, pipeline.batch.max_dead_letters
    if installation.ray_address == EMBEDDED:
        return RunOptions(wanted or os.cpu_count() or 1, max_dead_letters=most)
    import ray

    held: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    return RunOptions(wanted or int(held.get("CPU", 0)) or 1, max_dead_letters=most, is_spread=True)


def _deadline(pipeline: Pipeline) -> datetime | None:
    """Return when a job that begins now must end; None if there is no deadline."""
    if pipeline.batch.deadline is None:
        return None
    now = datetime.now(ZoneInfo(pipeline.schedule.timezone))
    hour, minute = map(int, pipeline.batch.deadline.split(":"))
    at = now.replace(hour=hour, minute=minute, second=0, microsecond=0)
    return at if at > now else at + timedelta(days=1)


def _dataset_columns(pipeline: Pipeline, installation: Installation) -> tuple[Column, ...]:
    """Return the columns of the dataset; none if there is no dataset."""
    try:
        return open_snapshot(installation, pipeline.name).schema.columns
    except InputError:
        return ()
