"""`make demo`: runs the whole platform on an example with one command."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from millrace.flows import settings, tool_variables
from millrace.flows.cli.show import training_rows
from millrace.flows.console import print_hint, print_table
from millrace.flows.flow_start import run_flow
from millrace.flows.release_model import release_model
from millrace.flows.score_batch import score_batch
from millrace.flows.train_model import TrainOutcome, train_model
from millrace.flows.training_start import connect_for_training, training_begun
from millrace.models.common.arrays import Array
from millrace.models.common.installation import Installation
from millrace.models.config.pipeline_file import load_pipeline
from millrace.models.registry.mlflow_registry import registry_of
from millrace.serving.batch.monitoring.batch_report import BatchReport
from millrace.serving.triton import load_generator as load
from millrace.serving.triton.client import TritonClient
from millrace.serving.triton.load_generator import LoadReport
from millrace.serving.triton.server import running
from millrace.tasks.kinds.steps import steps_of
from millrace.tasks.progress import log

CLIENTS = 16
LOAD_SECONDS = 5.0


@dataclass(frozen=True)
class DemoSummary:
    """The results of the demo's steps."""

    training: TrainOutcome
    live_version: int | None
    load: LoadReport
    requests_per_second: float
    batch: BatchReport
    rows_per_day: float


def run_demo(file: Path) -> DemoSummary:
    """Train, promote and serve a model, measure it under load, and score rows.

    Uses the Triton of `millrace up` if that runs. Otherwise the demo runs its own Triton.
    """
    chosen = tool_variables.apply(settings.load())
    installation = chosen.installation()
    pipeline = load_pipeline(file)
    # Ray is started first, because it forks: while threads of a gRPC client run, a fork may hang
    # before its exec. The flows use this connection, also where it is to the Ray of `millrace up`.
    with (
        training_begun(chosen, file),
        connect_for_training(chosen, pipeline),
        triton_for(installation),
    ):
        training: TrainOutcome = run_flow(train_model, str(file))
        run_flow(release_model)
        model = training.version.model
        with TritonClient(installation.triton[0]) as client:
            live = client.live_version(model)
        log.info("load: %s clients for %s s", CLIENTS, LOAD_SECONDS)
        seen = load.measure(
            installation.triton[0],
            model,
            _golden_row(installation, training),
            clients=CLIENTS,
            seconds=LOAD_SECONDS,
        )
        (batch,) = run_flow(score_batch, str(file))
    return DemoSummary(training, live, seen, seen.requests_per_second, batch, batch.rows_per_day)


def show_demo(summary: DemoSummary) -> None:
    """Print the results of the demo as one table."""
    batch = summary.batch
    rows = [
        *training_rows(summary.training),
        ("live on Triton", f"version {summary.live_version}"),
        (
            "requests/s seen",
            f"{summary.requests_per_second:,.0f} (p50 {summary.load.p50_ms:.2f} ms, "
            f"p99 {summary.load.p99_ms:.2f} ms, {summary.load.errors} errors)",
        ),
        ("rows scored", f"{batch.rows:,} into {batch.table}, date={batch.date}"),
        ("rows/day", f"{summary.rows_per_day:,.0f} (a run of {batch.seconds:.1f} s, end to end)"),
    ]
    print_table("millrace demo", ("what", "value"), rows)
    print_hint(
        f"`{_program()} up` keeps serving the model, with the MLflow and Prefect UIs; "
        "the README's second part shows how to use your own data"
    )


def _program() -> str:
    """Return the command that started this program: `millrace`, or its path in this folder."""
    path = Path(sys.argv[0]).absolute()
    is_here = path.name == "millrace" and path.is_relative_to(Path.cwd())
    return str(path.relative_to(Path.cwd())) if is_here else "millrace"


@contextmanager
def triton_for(installation: Installation) -> Iterator[None]:
    """Use the running Triton, or run one while the block runs.

    Raises:
        WorkError: another home's Triton has the ports, which is said before the training.
    """
    with TritonClient(installation.triton[0]) as client:
        ready = client.is_ready()
        if ready:
            client.index()
    if ready:
        yield
        return
    log.info("starting Triton")
    with running(installation, installation.triton[0]):
        yield


def _golden_row(installation: Installation, training: TrainOutcome) -> Mapping[str, Array]:
    package = registry_of(installation).fetch(training.version)
    rows = steps_of(package.version.kind).load_rows(package)
    return {name: each[:1] for name, each in rows.items()}
