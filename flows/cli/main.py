"""The command line: `millrace COMMAND`.

Modules that take seconds to import (MLflow, Prefect, Ray, torch) are imported by the command that
needs them, after `tool_variables.apply` has set the variables that they read.
"""

import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from millrace.flows import console, run_state, settings, tool_variables
from millrace.flows.cli.child_process import run_and_exit, run_in_child
from millrace.flows.deployments import left_flow_runs
from millrace.models.common.errors import MillraceError, TransientError, write_trace
from millrace.models.common.external_errors import explain_external_error
from millrace.models.common.printable import safe
from millrace.models.common.reachable import require_http
from millrace.models.registry import open_runs

if TYPE_CHECKING:
    from millrace.models.config.pipeline import Pipeline

EXAMPLE = Path("examples/digits.yaml")
"""The pipeline of `demo`; it is installed with the code, for users without a checkout."""
INTERRUPTED = 130
RAY_COMMANDS = {"run", "score", "demo"}
"""Commands that connect to Ray, whose core can end every process that is connected to it."""

app = typer.Typer(
    name="millrace",
    help="From a dataset to a served model and a nightly table of predictions.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)

keys = typer.Typer(
    help="API keys of the OpenAI-compatible server: add, list, revoke.", no_args_is_help=True
)
app.add_typer(keys, name="keys")

PipelineFile = Annotated[Path, typer.Argument(metavar="FILE", help="The pipeline file.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the outcome as JSON.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override one key; may be repeated."),
]


@app.command()
def check(file: PipelineFile, set_: Overrides = None, as_json: AsJson = False) -> None:
    """Check a pipeline file and print it with all defaults."""
    from millrace.models.config.pipeline_file import load_pipeline, resolved_yaml
    from millrace.models.preflight import preflight

    pipeline = load_pipeline(file, set_ or ())
    preflight(pipeline)
    _check_pinned_versions(pipeline)
    if as_json:
        console.print_json(pipeline.model_dump(mode="json"))
        return
    sys.stdout.write(resolved_yaml(pipeline))
    if pipeline.rollout.kind != "direct":
        from millrace.serving.rollout.rollout import describe_traffic

        _report(describe_traffic(pipeline.rollout))


@app.command()
def schema(as_json: AsJson = False) -> None:
    """Print the JSON Schema of pipeline files, so that an editor can autocomplete; always JSON."""
    from millrace.models.config.pipeline_file import json_schema

    console.print_json(json_schema())


@app.command()
def run(file: PipelineFile, set_: Overrides = None, as_json: AsJson = False) -> None:
    """Ingest a dataset, and train, export, certify and register a model."""
    chosen = _prepare(file, set_, check_source=True, is_flow=True)
    from millrace.flows.cli import show
    from millrace.flows.train_model import train_model

    with console.reserve_stdout():
        outcome = train_model(str(file.resolve()), list(set_ or ()))
    if as_json:
        console.print_json(outcome)
    else:
        show.show_training(outcome, is_up=run_state.is_supervisor_alive(chosen.run))


@app.command()
def release(
    watch: Annotated[bool, typer.Option("--watch", help="Repeat until Ctrl-C.")] = False,
    interval: Annotated[float, typer.Option(min=1, help="Seconds between two checks.")] = 5.0,
    as_json: AsJson = False,
) -> None:
    """Make Triton serve the versions with the alias champion in the registry."""
    _prepare(is_flow=True)
    from millrace.flows.cli import show
    from millrace.flows.release_model import release_model

    print_outcomes = console.print_json if as_json else show.show_release
    if watch:
        from millrace.flows.triggers.watch import watch_releases
        from millrace.tasks.release import ReleaseCheck

        find_due = ReleaseCheck(settings.load().installation).due
        release_due = partial(release_model, asked_by="millrace release --watch")
        watch_releases(interval, print_outcomes, find_due, release_due)
        return
    with console.reserve_stdout():
        outcomes = release_model(asked_by="millrace release", again=True)
    print_outcomes(outcomes)


@app.command()
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
    _prepare(file, is_flow=True)
    from millrace.flows.cli import show
    from millrace.flows.score_batch import score_batch

    with console.reserve_stdout():
        reports = score_batch(str(file.resolve()), input, date, catch_up=catch_up, version=version)
    if as_json:
        console.print_json(reports if catch_up else reports[-1])
        return
    for report in reports:
        show.show_batch(report)


@app.command()
def lineage(
    table: Annotated[
        str, typer.Argument(metavar="MODEL", help="A model, or a table of predictions.")
    ],
    row: Annotated[str, typer.Option(help="The row's _key.")],
    date: Annotated[
        str | None, typer.Option(help="Date of one partition, YYYY-MM-DD; all if left out.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Trace a scored row: file, job, model version, certificate, run, dataset and release."""
    chosen = _prepare()
    from millrace.flows.cli import show
    from millrace.flows.cli.lineage import trace_rows

    rows = trace_rows(chosen.installation(), table, row, date)
    console.print_json(rows) if as_json else show.show_lineage(rows)


@app.command()
def predict(
    model: Annotated[str, typer.Argument(help="A model that Triton serves.")],
    rows: Annotated[
        str | None,
        typer.Option(help="JSON Lines file of rows, or - for stdin; a golden row if left out."),
    ] = None,
    text: Annotated[
        str | None,
        typer.Option(help="For a language model: the prompt, or - for stdin."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Send one request to the live model."""
    chosen = _prepare()
    from millrace.flows.cli import show
    from millrace.flows.cli.predict import predict_live
    from millrace.tasks.kinds.steps import Question

    print_text = (lambda piece: None) if as_json else console.print_piece
    answer = predict_live(chosen.installation(), model, Question(rows, text, print_text))
    console.print_json(answer) if as_json else show.show_prediction(answer)


@keys.command("add")
def add_key(
    name: Annotated[str, typer.Argument(help="The person or program that owns the key.")],
    tokens_per_minute: Annotated[
        int, typer.Option(min=1, help="Limit on prompt and answer tokens together.")
    ] = 60_000,
    as_json: AsJson = False,
) -> None:
    """Create a key, and print its secret, which is not shown again."""
    from millrace.flows.cli import api_keys

    key = api_keys.add_key(settings.load(), name, tokens_per_minute)
    console.print_json(key) if as_json else api_keys.show_new_key(key)


@keys.command("list")
def list_keys(as_json: AsJson = False) -> None:
    """Print the names and the limits of the keys."""
    from millrace.flows.cli import api_keys

    known = api_keys.list_keys(settings.load())
    console.print_json(known) if as_json else api_keys.show_keys(known)


@keys.command("revoke")
def revoke_key(
    name: Annotated[str, typer.Argument(help="The key's name.")], as_json: AsJson = False
) -> None:
    """Revoke a key; the server refuses it within a second."""
    from millrace.flows.cli import api_keys

    left = api_keys.revoke_key(settings.load(), name)
    console.print_json(left) if as_json else api_keys.show_keys(left)


@app.command()
def certify(
    model: Annotated[str, typer.Argument(help="A model that Triton serves.")],
    as_json: AsJson = False,
) -> None:
    """Certify the live version on the test split and on its golden rows (or golden prompts)."""
    chosen = _prepare()
    from millrace.flows.cli import show
    from millrace.tasks.export import certify_live

    with console.reserve_stdout():
        found = certify_live(chosen.installation(), model)
    console.print_json(found) if as_json else show.show_certified(found)
    if found.faults:
        raise typer.Exit(1)


@app.command()
def up(
    foreground: Annotated[bool, typer.Option("--foreground", help="Stay until Ctrl-C.")] = False,
    as_json: AsJson = False,
) -> None:
    """Start MLflow, Prefect, Triton and the scheduled deployments on this machine."""
    from millrace.flows.cli import show
    from millrace.flows.services import control

    found = control.up(settings.load(), detach=not foreground, report=_report)
    console.print_json(found) if as_json else show.show_status(found)
    for line in show.describe_status(found):
        _report(line)


@app.command()
def down(as_json: AsJson = False) -> None:
    """Stop everything that `up` started."""
    from millrace.flows.services import control

    result = control.down(settings.load(), report=_report)
    if as_json:
        console.print_json(result)
    else:
        _report("stopped" if result.was_running else "nothing was running")


@app.command()
def status(as_json: AsJson = False) -> None:
    """Show what runs, and which versions are live."""
    from millrace.flows.cli import show
    from millrace.flows.services import control
    from millrace.serving.release import live

    chosen = settings.load()
    with console.reserve_stdout():
        found = control.status(chosen, live_versions=live.live_versions)
        served = live.served_models(chosen.installation(), found.live_versions)
    if as_json:
        console.print_json({**console.to_json_value(found), "served": served})
        return
    show.show_status(found)
    for line in show.describe_status(found):
        console.print_hint(line, label="note")
    show.show_served(served)


@app.command()
def sign(
    model: Annotated[str, typer.Argument(help="A registered model.")],
    version: Annotated[int, typer.Argument(min=1, help="The version's number.")],
    as_json: AsJson = False,
) -> None:
    """Check the digests of a version without a trusted signature, and sign the version."""
    chosen = _prepare()
    from millrace.flows.cli.sign_version import sign_version

    with console.reserve_stdout():
        found = sign_version(chosen.installation(), model, version)
    if as_json:
        console.print_json(found)
        return
    _report(f"signed {found.model} version {found.version}, whose state was: {found.before}")
    for name, value in found.statement.items():
        _report(f"  {name}: {value}")
    console.print_hint("`millrace release`, if the version has the alias champion")


@app.command()
def backup(
    file: Annotated[Path, typer.Argument(help="The file to write, such as home.tar.gz.")],
    as_json: AsJson = False,
) -> None:
    """Write the home folder (versions, tables, keys, history) to one file, even while `up` runs."""
    from millrace.flows.cli.backup import back_up

    console.set_up_logging()
    made = back_up(settings.load().home, file)
    if as_json:
        console.print_json(made)
        return
    _report(f"wrote {made.files:,} files, {made.size_bytes:,} bytes of {made.home}, to {made.file}")
    console.print_hint("keep the backup as private as the home; it contains the home's keys")


@app.command()
def restore(
    file: Annotated[Path, typer.Argument(help="A file that `millrace backup` wrote.")],
    as_json: AsJson = False,
) -> None:
    """Restore the home folder at its original path from a backup, completely or not at all."""
    from millrace.flows.cli.backup import restore_home

    console.set_up_logging()
    found = restore_home(settings.load().home, file)
    if as_json:
        console.print_json(found)
        return
    _report(f"{found.home} is restored as of {found.made}")
    console.print_hint("`millrace up`, then `millrace release`: Triton serves the champions again")


@app.command()
def history(
    model: Annotated[str, typer.Argument(help="A registered model.")],
    limit: Annotated[int, typer.Option(min=1, help="Number of newest releases to print.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Print the releases of a model: what went live or was refused, when, why, and who asked."""
    from millrace.flows.cli import show
    from millrace.serving.release import live

    releases = live.history(settings.load().installation(), model, limit)
    console.print_json(releases) if as_json else show.show_history(model, releases)


@app.command()
def demo(
    file: Annotated[Path, typer.Argument(metavar="FILE")] = EXAMPLE,
    as_json: AsJson = False,
) -> None:
    """Train, promote, serve and score an example, and print one table."""
    if file == EXAMPLE and not file.exists():
        file = Path(__file__).parents[2] / EXAMPLE
    _prepare(file, check_source=True, is_flow=True)
    from millrace.flows.cli.demo import run_demo, show_demo

    with console.reserve_stdout():
        summary = run_demo(file.resolve())
    console.print_json(summary) if as_json else show_demo(summary)


def _prepare(
    file: Path | None = None,
    overrides: list[str] | None = None,
    *,
    check_source: bool = False,
    is_flow: bool = False,
) -> settings.Settings:
    """Check the user's input before anything slow is imported, and set the environment.

    Args:
        file: the pipeline file.
        overrides: the values of `--set`.
        check_source: whether to check the source, its columns and the family as well.
        is_flow: whether the command runs a Prefect flow.
    """
    from millrace.models.config.pipeline_file import load_pipeline

    pipeline = load_pipeline(file, overrides or ()) if file is not None else None
    chosen = tool_variables.apply(settings.load())
    if pipeline is not None and check_source:
        from millrace.models.preflight import preflight

        preflight(pipeline)
    api = chosen.prefect_api()
    if api is not None:
        require_prefect = partial(require_http, service="Prefect", setting="PREFECT_API_URL")
        run_state.wait_for_start(chosen.run, api, partial(require_prefect, f"{api}/health"))
    elif is_flow:
        from millrace.flows.services import prefect_server

        prefect_server.end_orphaned_servers(str(chosen.home))
        prefect_server.guard_temporary_server()
    if is_flow:
        _end_left_runs()
    console.redirect_native_stderr(chosen.installation().logs / "native.log")
    console.set_up_logging()
    if is_flow:  # imports and the start of Ray take seconds, in which nothing else is printed
        console.log.info("starting the flow")
    return chosen


def _check_pinned_versions(pipeline: "Pipeline") -> None:
    """Look up the registered versions that a file names, unless MLflow cannot be reached."""
    from millrace.models.config.model_kind import kind_of_family
    from millrace.tasks.kinds.steps import steps_of

    steps = steps_of(kind_of_family(pipeline.model.family))
    if not steps.names_versions(pipeline):  # such a file can be checked without a home
        return
    with suppress(TransientError):
        steps.pin_versions(pipeline, tool_variables.apply(settings.load()).installation())


def _report(line: str) -> None:
    sys.stderr.write(safe(line) + "\n")


def main() -> None:
    """Run a command; a user's mistake gives an error message and exit code 2, no stack trace."""
    as_json = "--json" in sys.argv
    command = partial(_run_command, as_json=as_json)
    if not RAY_COMMANDS & set(sys.argv[1:2]):
        run_and_exit(command)
    run_in_child(command, partial(console.print_error, as_json=as_json), _end_left_runs)


def _end_left_runs() -> None:
    """End the MLflow and Prefect runs of this home's commands whose processes are gone."""
    with suppress(Exception):  # the next command retries
        chosen = tool_variables.apply(settings.load())
        if any((chosen.run / open_runs.FOLDER).glob("*.json")):
            from millrace.models.registry import tracking

            tracking.end_left_runs(chosen.run)
        left_flow_runs.mark_left_runs(chosen.run)


def _run_command(*, as_json: bool) -> None:
    try:
        app()
    except SystemExit as ended:
        if ended.code == INTERRUPTED:  # typer's exit code for Ctrl-C
            _report("stopped; nothing unfinished was published")
        raise
    except Exception as error:
        # A `MillraceError`, a known error of an external tool, or else a bug in Millrace.
        reported = explain_external_error(error) or _unexpected_error(error)
        console.print_error(reported, as_json=as_json)
        sys.exit(reported.exit_code)


def _unexpected_error(error: Exception) -> MillraceError:
    """Return the error for an unexpected exception; its hint names the stack trace's file."""
    logs = None
    with suppress(MillraceError):  # a setting may be the cause
        logs = settings.load().installation().logs
    return MillraceError(
        "an unexpected error ended the command",
        seen=f"{type(error).__name__}: {error}",
        hint="run the command again; if the error stays, report it with "
        f"{write_trace(error, logs)}",
    )
