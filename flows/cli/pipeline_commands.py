"""The commands of the line: `check`, `schema`, `run`, `release`, `score` and `demo`."""

import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from millrace.flows import console
from millrace.flows.cli.command_setup import (
    AsJson,
    Overrides,
    PipelineFile,
    begin_batch_ray,
    begin_training_ray,
    load_settings,
    prepare,
    report,
)
from millrace.flows.cli.profile import profile_champions
from millrace.flows.cli.promotions import show_promotions
from millrace.models.common.errors import InputError, TransientError
from millrace.models.common.slow_step import report_while

if TYPE_CHECKING:
    from millrace.models.config.pipeline import Pipeline

LOADING = "loading Prefect, MLflow and Ray"
EXAMPLE = Path("examples/digits.yaml")
"""The pipeline of `demo`; it is installed with the code, for users without a checkout."""


def check(
    file: PipelineFile,
    set_: Overrides = None,
    full: Annotated[
        bool,
        typer.Option("--full", help="Read all rows, build the model, estimate memory and time."),
    ] = False,
    resolved: Annotated[
        bool, typer.Option("--resolved", help="Print the file with all defaults too.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check a pipeline file and its data, and say in about ten lines what a run does."""
    from millrace.flows.cli import check_data
    from millrace.models.config.pipeline_file import load_pipeline, resolved_yaml
    from millrace.models.preflight import preflight

    pipeline = load_pipeline(file, set_ or ())
    unreachable = preflight(pipeline)
    _check_pinned_versions(pipeline)
    if full:
        found = check_data.check_all_rows(pipeline)
    elif unreachable:  # the file is not at fault, and a run tries again
        found = check_data.CheckReport((f"rows: the source was not checked: {unreachable}",))
    else:
        found = check_data.check_first_rows(pipeline)
    if as_json:
        values = {"pipeline": pipeline.model_dump(mode="json"), "data": found.as_json()}
        console.print_json(values)
        return
    lines = [*found.lines, *(f"warning: {each}" for each in found.warnings)]
    if pipeline.rollout.kind != "direct":
        from millrace.serving.rollout.rollout import describe_traffic

        slo = pipeline.serving.slo
        lines.append(describe_traffic(pipeline.rollout.with_goal(slo.p99_ms if slo else None)))
    if resolved:
        sys.stdout.write(resolved_yaml(pipeline))
    for line in lines:
        report(line) if resolved else console.print_line(line)


def _check_pinned_versions(pipeline: "Pipeline") -> None:
    """Look up the registered versions that a file names, unless MLflow cannot be reached."""
    from millrace.flows import tool_variables
    from millrace.models.config.model_kind import kind_of_family
    from millrace.tasks.kinds.steps import steps_of

    steps = steps_of(kind_of_family(pipeline.model.family))
    if not steps.names_versions(pipeline):  # such a file can be checked without a home
        return
    with suppress(TransientError):
        steps.pin_versions(pipeline, tool_variables.apply(load_settings()).installation())


def schema(as_json: AsJson = False) -> None:
    """Print the JSON Schema of pipeline files, so that an editor can autocomplete; always JSON."""
    from millrace.models.config.pipeline_file import json_schema

    console.print_json(json_schema())


def run(file: PipelineFile, set_: Overrides = None, as_json: AsJson = False) -> None:
    """Ingest a dataset, and train, export, certify and register a model."""
    chosen = prepare(file, set_, check_source=True, is_flow=True, begin_ray=begin_training_ray)
    with report_while(LOADING):
        from millrace.flows import run_state
        from millrace.flows.cli import show
        from millrace.flows.flow_start import run_flow
        from millrace.flows.train_model import train_model
        from millrace.flows.training_start import training_begun

    overrides = list(set_ or ())
    with console.reserve_stdout(), training_begun(chosen, file, overrides):
        outcome = run_flow(train_model, str(file.resolve()), overrides)
    if as_json:
        console.print_json(outcome)
    else:
        show.show_training(outcome, is_up=run_state.is_supervisor_alive(chosen.run))


def release(
    watch: Annotated[bool, typer.Option("--watch", help="Repeat until Ctrl-C.")] = False,
    interval: Annotated[float, typer.Option(min=1, help="Seconds between two checks.")] = 5.0,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Change nothing; say what a promotion would change.")
    ] = False,
    profile: Annotated[
        bool,
        typer.Option(
            "--profile",
            help="First measure here each champion that needs a proof of its latency goal "
            "(promotion.require.slo) and has none that holds on this machine; it takes minutes.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Make Triton serve the versions with the alias champion in the registry."""
    if dry_run and (profile or watch):
        raise InputError(
            "a dry run changes nothing",
            seen=f"--dry-run with {'--profile' if profile else '--watch'}",
            valid="one of them",
            hint="look first with --dry-run alone",
        )
    if dry_run:
        show_promotions(as_json=as_json)
        return
    if profile:
        profile_champions()
    prepare(is_flow=True)
    with report_while(LOADING):
        from millrace.flows.cli import show
        from millrace.flows.flow_start import run_flow
        from millrace.flows.release_model import release_model

    print_outcomes = console.print_json if as_json else show.show_release
    if watch:
        from millrace.flows.triggers.watch import watch_releases
        from millrace.tasks.release import ReleaseCheck

        find_due = ReleaseCheck(load_settings().installation).due
        release_due = partial(release_model, asked_by="millrace release --watch")
        watch_releases(interval, print_outcomes, find_due, release_due)
        return
    with console.reserve_stdout():
        outcomes = run_flow(release_model, asked_by="millrace release", again=True)
    print_outcomes(outcomes)


def score(
    file: PipelineFile,
    input: Annotated[
        str | None, typer.Option("--input", help="Rows to score: file, glob, URI or Delta table.")
    ] = None,
    date: Annotated[
        str | None, typer.Option(help="Partition to write, YYYY-MM-DD; yesterday if left out.")
    ] = None,
    catch_up: Annotated[
        bool,
        typer.Option("--catch-up", help="Without --date: score missed dates first."),
    ] = False,
    version: Annotated[
        int | None,
        typer.Option(min=1, help="Score with this version, whether it is approved or not."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Score rows with the approved version into one partition of a Delta table."""
    from millrace.flows.score_dates import parse_date

    if date is not None:
        parse_date(date)  # before anything is imported or started
    from millrace.flows.cli import show
    from millrace.flows.finished_scores import find_finished_scores

    reports = find_finished_scores(file, input, date, catch_up=catch_up, version=version)
    if reports is None:
        prepare(file, is_flow=True, begin_ray=begin_batch_ray)
        with report_while(LOADING):
            from millrace.flows.flow_start import run_flow
            from millrace.flows.score_batch import score_batch

        file_name = str(file.resolve())
        with console.reserve_stdout():
            reports = run_flow(
                score_batch, file_name, input, date, catch_up=catch_up, version=version
            )
    if as_json:
        console.print_json(reports if catch_up else reports[-1])
        return
    for each in reports:
        show.show_batch(each)


def demo(
    file: Annotated[Path, typer.Argument(metavar="FILE")] = EXAMPLE,
    as_json: AsJson = False,
) -> None:
    """Train, promote, serve and score an example, and print one table."""
    if file == EXAMPLE and not file.exists():
        file = Path(__file__).parents[2] / EXAMPLE
    prepare(file, check_source=True, is_flow=True, begin_ray=begin_training_ray)
    with report_while(LOADING):
        from millrace.flows.cli.demo import run_demo, show_demo

    with console.reserve_stdout():
        summary = run_demo(file.resolve())
    console.print_json(summary) if as_json else show_demo(summary)
