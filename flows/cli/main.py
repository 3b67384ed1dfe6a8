"""The command line: `millrace COMMAND`.

Modules that take seconds to import (MLflow, Prefect, Ray, torch) are imported by the command that
needs them, after the settings were put into the environment that they read.
"""

import logging
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from millrace.flows import console, environment, run_state, settings
from millrace.flows.cli.child_process import run_to_the_end, run_witnessed
from millrace.flows.deployments import left_flow_runs
from millrace.flows.services.starting import once_started
from millrace.models.common.errors import MillraceError, TransientError, write_trace
from millrace.models.common.external_errors import explain_external_error
from millrace.models.common.printable import safe
from millrace.models.common.reachable import require_http
from millrace.models.registry import open_runs

if TYPE_CHECKING:
    from millrace.models.config.pipeline import Pipeline

EXAMPLE = Path("examples/digits.yaml")
"""What `demo` sends down the line; it is installed with the code, for who has no checkout."""
INTERRUPTED = 130
ON_RAY = {"run", "score", "demo"}
"""Commands that Ray may end: its core ends the process of whoever it is connected to."""

app = typer.Typer(
    name="millrace",
    help="From a dataset to a served model and a nightly table of predictions.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)

keys = typer.Typer(
    help="API keys of the door in OpenAI's form: add, list, revoke.", no_args_is_help=True
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
    """Check a pipeline file and print it resolved."""
    from millrace.models.config.pipeline_file import load_pipeline, resolved_yaml
    from millrace.models.preflight import preflight

    pipeline = load_pipeline(file, set_ or ())
    preflight(pipeline)
    _require_named(pipeline)
    if as_json:
        console.print_json(pipeline.model_dump(mode="json"))
        return
    sys.stdout.write(resolved_yaml(pipeline))
    if pipeline.rollout.kind != "direct":
        from millrace.serving.rollout import evidence

        _say(evidence.in_words(pipeline.rollout))


@app.command()
def schema(as_json: AsJson = False) -> None:
    """Print the JSON Schema of pipeline files, for an editor to complete by; always as JSON."""
    from millrace.models.config.pipeline_file import json_schema

    console.print_json(json_schema())


@app.command()
def run(file: PipelineFile, set_: Overrides = None, as_json: AsJson = False) -> None:
    """Ingest, train, export, certify and register."""
    _ready(file, set_, preflighted=True, flow=True)
    from millrace.flows.cli.show import show_training
    from millrace.flows.train_model import train_model

    with console.stdout_for_results():
        outcome = train_model(str(file.resolve()), list(set_ or ()))
    if as_json:
        console.print_json(outcome)
    else:
        show_training(outcome, is_up=run_state.supervisor_alive(settings.load().run))


@app.command()
def release(
    watch: Annotated[bool, typer.Option("--watch", help="Go on until Ctrl-C.")] = False,
    interval: Annotated[float, typer.Option(min=1, help="Seconds between two looks.")] = 5.0,
    as_json: AsJson = False,
) -> None:
    """Make what Triton serves equal to the registry's champions."""
    _ready(flow=True)
    from millrace.flows.cli.release_loop import release_once, watch_releases
    from millrace.flows.cli.show import show_release

    if watch:
        from millrace.tasks.release import ReleaseCheck

        show = console.print_json if as_json else show_release
        watch_releases(interval, show, ReleaseCheck(settings.load().places).due)
        return
    with console.stdout_for_results():
        outcomes = release_once()
    console.print_json(outcomes) if as_json else show_release(outcomes)


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
        typer.Option("--catch-up", help="Without --date: make up for missed ones first."),
    ] = False,
    version: Annotated[
        int | None,
        typer.Option(min=1, help="Score with this version, whether it is approved or not."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Score rows with the approved version into one partition of a Delta table."""
    _ready(file, flow=True)
    from millrace.flows.cli.show_batch import show_batch
    from millrace.flows.score_batch import score_batch

    with console.stdout_for_results():
        reports = score_batch(str(file.resolve()), input, date, catch_up=catch_up, version=version)
    if as_json:
        console.print_json(reports if catch_up else reports[-1])
        return
    for report in reports:
        show_batch(report)


@app.command()
def lineage(
    table: Annotated[
        str, typer.Argument(metavar="MODEL", help="A model, or a table of predictions.")
    ],
    row: Annotated[str, typer.Option(help="The row's _key.")],
    date: Annotated[
        str | None, typer.Option(help="Of one partition, YYYY-MM-DD; all if left out.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Trace a scored row: file, job, model version, certificate, run, dataset and release."""
    _ready()
    from millrace.flows.cli.lineage import lineage as trace
    from millrace.flows.cli.show_batch import show_lineage

    found = trace(settings.load().places(), table, row, date)
    console.print_json(found) if as_json else show_lineage(found)


@app.command()
def predict(
    model: Annotated[str, typer.Argument(help="A model that Triton serves.")],
    rows: Annotated[
        str | None,
        typer.Option(help="JSON Lines file of rows, or - for stdin; a golden row if left out."),
    ] = None,
    text: Annotated[
        str | None,
        typer.Option(help="For a language model: what to go on with, or - for stdin."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Send one request to the live model."""
    _ready()
    from millrace.flows.cli.predict import predict_live
    from millrace.flows.cli.show import show_prediction

    say = (lambda piece: None) if as_json else console.print_piece
    answer = predict_live(settings.load().places(), model, rows, text, say)
    console.print_json(answer) if as_json else show_prediction(answer)


@keys.command("add")
def add_key(
    name: Annotated[str, typer.Argument(help="Of a person or a program.")],
    tokens_per_minute: Annotated[
        int, typer.Option(min=1, help="Tokens of prompts and answers together.")
    ] = 60_000,
    as_json: AsJson = False,
) -> None:
    """Make a key, and print its secret, this once."""
    from millrace.flows.cli.api_keys import add_key as add
    from millrace.flows.cli.show_language import show_new_key

    made = add(settings.load(), name, tokens_per_minute)
    console.print_json(made) if as_json else show_new_key(made)


@keys.command("list")
def list_keys(as_json: AsJson = False) -> None:
    """Print the names and the limits of the keys."""
    from millrace.flows.cli.api_keys import known_keys
    from millrace.flows.cli.show_language import show_keys

    known = known_keys(settings.load())
    console.print_json(known) if as_json else show_keys(known)


@keys.command("revoke")
def revoke_key(
    name: Annotated[str, typer.Argument(help="Of the key.")], as_json: AsJson = False
) -> None:
    """Take a key away; the door knows within a second."""
    from millrace.flows.cli.api_keys import revoke_key as revoke
    from millrace.flows.cli.show_language import show_keys

    left = revoke(settings.load(), name)
    console.print_json(left) if as_json else show_keys(left)


@app.command()
def certify(
    model: Annotated[str, typer.Argument(help="A model that Triton serves.")],
    as_json: AsJson = False,
) -> None:
    """Certify the live version: what it was certified to answer, and the test split."""
    _ready()
    from millrace.flows.cli.show import show_certified
    from millrace.tasks.certify import certify_live

    with console.stdout_for_results():
        found = certify_live(settings.load().places(), model)
    console.print_json(found) if as_json else show_certified(found)
    if found.faults:
        raise typer.Exit(1)


@app.command()
def up(
    foreground: Annotated[bool, typer.Option("--foreground", help="Stay until Ctrl-C.")] = False,
    as_json: AsJson = False,
) -> None:
    """Start MLflow, Prefect, Triton and the scheduled deployments on this machine."""
    from millrace.flows.cli.show import show_status
    from millrace.flows.cli.show_up import lines_of_status
    from millrace.flows.services import control

    chosen = settings.load()
    found = control.up(chosen, detach=not foreground, say=_say)
    console.print_json(found) if as_json else show_status(found)
    for line in lines_of_status(found):
        _say(line)


@app.command()
def down(as_json: AsJson = False) -> None:
    """Stop everything that `up` started."""
    from millrace.flows.services import control

    stopped = control.down(settings.load(), say=_say)
    if as_json:
        console.print_json(stopped)
    else:
        _say("stopped" if stopped.was_running else "nothing was running")


@app.command()
def status(as_json: AsJson = False) -> None:
    """Tell what runs, and which versions are live."""
    from millrace.flows.cli.show import show_served, show_status
    from millrace.flows.cli.show_up import lines_of_status
    from millrace.flows.services import control
    from millrace.serving.release.live import live_versions, served_models

    chosen = settings.load()
    with console.stdout_for_results():
        found = control.status(chosen, live_versions=live_versions)
        served = served_models(chosen.places(), found.live_versions)
    if as_json:
        console.print_json({**console.plain(found), "served": served})
        return
    show_status(found)
    for line in lines_of_status(found):
        console.print_hint(line, label="note")
    show_served(served)


@app.command()
def sign(
    model: Annotated[str, typer.Argument(help="A registered model.")],
    version: Annotated[int, typer.Argument(min=1, help="Of which version.")],
    as_json: AsJson = False,
) -> None:
    """Sign a version that has no signature this home trusts, its digests checked first."""
    _ready()
    from millrace.flows.cli.sign_version import sign_version

    with console.stdout_for_results():
        found = sign_version(settings.load().places(), model, version)
    if as_json:
        console.print_json(found)
        return
    _say(f"signed {found.model} version {found.version}, which counted as: {found.before}")
    for name, value in found.statement.items():
        _say(f"  {name}: {value}")
    console.print_hint("millrace release, if it has the alias champion")


@app.command()
def backup(
    file: Annotated[Path, typer.Argument(help="The file to write, such as home.tar.gz.")],
    as_json: AsJson = False,
) -> None:
    """Write the home into one file, also while `up` runs: versions, tables, keys, histories."""
    from millrace.flows.cli.backup import back_up

    console.set_up_logging()
    made = back_up(settings.load().home, file)
    if as_json:
        console.print_json(made)
        return
    _say(f"{made.files:,} files, {made.size_bytes:,} bytes of {made.home} are in {made.file}")
    console.print_hint("it holds the home's keys: keep it as private as the home")


@app.command()
def restore(
    file: Annotated[Path, typer.Argument(help="What `millrace backup` wrote.")],
    as_json: AsJson = False,
) -> None:
    """Put the home of a backup back to where it was, whole or not at all."""
    from millrace.flows.cli.backup import restore as put_back

    console.set_up_logging()
    found = put_back(settings.load().home, file)
    if as_json:
        console.print_json(found)
        return
    _say(f"{found.home} is as it was at {found.made}")
    console.print_hint("millrace up, and millrace release, which brings Triton to its aliases")


@app.command()
def history(
    model: Annotated[str, typer.Argument(help="A registered model.")],
    limit: Annotated[int, typer.Option(min=1, help="Releases to print, the newest.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Print the releases of a model: what went live or was refused, when, why, and who asked."""
    from millrace.flows.cli.show import show_history
    from millrace.serving.release.live import history as releases_of

    releases = releases_of(settings.load().places(), model, limit)
    console.print_json(releases) if as_json else show_history(model, releases)


@app.command()
def demo(
    file: Annotated[Path, typer.Argument(metavar="FILE")] = EXAMPLE,
    as_json: AsJson = False,
) -> None:
    """Train, promote, serve and score an example, and print one table."""
    if file == EXAMPLE and not file.exists():
        file = Path(__file__).parents[2] / EXAMPLE
    _ready(file, preflighted=True, flow=True)
    from millrace.flows.cli.demo import run_demo
    from millrace.flows.cli.show import show_demo

    with console.stdout_for_results():
        summary = run_demo(file.resolve())
    console.print_json(summary) if as_json else show_demo(summary)


def _ready(
    file: Path | None = None,
    overrides: list[str] | None = None,
    *,
    preflighted: bool = False,
    flow: bool = False,
) -> None:
    """Check the user's input before anything slow is imported, and set the environment.

    Args:
        file: the pipeline file.
        overrides: lines of `--set`.
        preflighted: whether the source, its columns and the family are looked at as well.
        flow: whether a flow of Prefect's is run.
    """
    from millrace.models.config.pipeline_file import load_pipeline

    pipeline = load_pipeline(file, overrides or ()) if file is not None else None
    found = environment.apply(settings.load())
    if pipeline is not None and preflighted:
        from millrace.models.preflight import preflight

        preflight(pipeline)
    places, prefect_api = found.places(), found.prefect_api()
    if prefect_api is not None:
        look = partial(require_http, service="Prefect", setting="PREFECT_API_URL")
        once_started(found.run, prefect_api, partial(look, f"{prefect_api}/health"))
    elif flow:
        from millrace.flows.services import temporary_server

        temporary_server.end_orphans(str(found.home))
        temporary_server.keep_apart()
    if flow:
        _end_left_runs()
    console.native_stderr_to(places.logs / "native.log")
    console.set_up_logging()
    if flow:  # to import and to start what it runs on takes seconds, in which nothing else is said
        logging.getLogger("millrace").info("starting the flow")


def _require_named(pipeline: "Pipeline") -> None:
    """Look for the registered versions that a file names; an MLflow that is away tells nothing."""
    from millrace.tasks.reference_version import names_versions, pinned_versions

    if names_versions(pipeline):
        from millrace.models.registry.mlflow_registry import registry_of

        with suppress(TransientError):
            found = environment.apply(settings.load())
            pinned_versions(pipeline, registry_of(found.places()))


def _say(line: str) -> None:
    sys.stderr.write(safe(line) + "\n")


def main() -> None:
    """Run a command; a user's mistake is an error message and exit code 2, never a stack trace."""
    as_json = "--json" in sys.argv
    command = partial(_main, as_json=as_json)
    if not ON_RAY & set(sys.argv[1:2]):
        run_to_the_end(command)
    run_witnessed(command, partial(console.print_error, as_json=as_json), _end_left_runs)


def _end_left_runs() -> None:
    """End the runs of commands of this home that are gone, in MLflow and in Prefect."""
    with suppress(Exception):  # a next command tries again
        chosen = environment.apply(settings.load())
        if any((chosen.run / open_runs.FOLDER).glob("*.json")):
            from millrace.models.registry import left_runs

            left_runs.end_left(chosen.run)
        if any((chosen.run / left_flow_runs.FOLDER).glob("*.json")):
            left_flow_runs.end_left(chosen.run)


def _main(*, as_json: bool) -> None:
    try:
        app()
    except MillraceError as error:
        console.print_error(error, as_json=as_json)
        sys.exit(error.exit_code)
    except SystemExit as ended:
        if ended.code == INTERRUPTED:  # what typer makes of Ctrl-C
            _say("stopped; nothing unfinished was published")
        raise
    except Exception as error:
        # The last resort for a fault of ours: the trace goes to a file, its place to the user.
        told = explain_external_error(error) or _unexpected(error)
        console.print_error(told, as_json=as_json)
        sys.exit(told.exit_code)


def _unexpected(error: Exception) -> MillraceError:
    logs = None
    with suppress(MillraceError):  # a setting may be what is wrong
        logs = settings.load().places().logs
    return MillraceError(
        "an unexpected fault ended the command",
        seen=f"{type(error).__name__}: {error}",
        hint=f"run it again; if it stays, report it with {write_trace(error, logs)}",
    )
