"""The arguments that commands share, and what a command does before its work.

Modules that take seconds to import (MLflow, Prefect, Ray, torch) are imported by the command that
needs them, inside its function, after `tool_variables.apply` has set the variables that they read.
The settings too are imported by the commands: they took half of the time of `--help`.
"""

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from millrace.flows import console
from millrace.models.common.installation import EMBEDDED
from millrace.models.common.printable import safe
from millrace.models.ray.fork_imports import BATCH_IMPORTS, TRAINING_IMPORTS

if TYPE_CHECKING:
    from millrace.flows.settings import Settings
    from millrace.models.config.pipeline import Pipeline

PipelineFile = Annotated[Path, typer.Argument(metavar="FILE", help="The pipeline file.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the outcome as JSON.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override one key; may be repeated."),
]


def prepare(
    file: Path | None = None,
    overrides: list[str] | None = None,
    *,
    check_source: bool = False,
    is_flow: bool = False,
    begin_ray: "Callable[[Settings, Pipeline], None] | None" = None,
) -> "Settings":
    """Check the user's input before anything slow is imported, and set the environment.

    Args:
        file: the pipeline file.
        overrides: the values of `--set`.
        check_source: whether to check the source, its columns and the family as well.
        is_flow: whether the command runs a Prefect flow.
        begin_ray: begins to start Ray for a command that will use it, once its file is checked.
    """
    from millrace.flows import run_state, tool_variables
    from millrace.models.common.reachable import require_http
    from millrace.models.config.pipeline_file import load_pipeline

    pipeline = load_pipeline(file, overrides or ()) if file is not None else None
    chosen = tool_variables.apply(load_settings())
    if pipeline is not None and check_source:
        from millrace.models.preflight import preflight

        preflight(pipeline)
    if pipeline is not None and begin_ray is not None:
        begin_ray(chosen, pipeline)
    api = chosen.prefect_api()
    if api is not None:
        require_prefect = partial(require_http, service="Prefect", setting="PREFECT_API_URL")
        run_state.wait_for_start(chosen.run, api, partial(require_prefect, f"{api}/health"))
    elif is_flow:
        from millrace.flows.services import temporary_prefect

        temporary_prefect.end_orphaned_servers(str(chosen.home))
        temporary_prefect.begin_server(chosen.installation().logs / "prefect-temporary.log")
    if is_flow:
        end_left_runs()
    console.redirect_native_stderr(chosen.installation().logs / "native.log")
    console.set_up_logging()
    if is_flow:  # imports and the start of Ray take seconds, in which nothing else is printed
        console.log.info("starting the flow")
    return chosen


def load_settings() -> "Settings":
    """Return the settings of this command."""
    from millrace.flows import settings

    return settings.load()


def begin_training_ray(chosen: "Settings", pipeline: "Pipeline") -> None:
    """Begin to start the Ray that a training will use."""
    _begin_ray(chosen, pipeline.training.workers, TRAINING_IMPORTS)


def begin_batch_ray(chosen: "Settings", pipeline: "Pipeline") -> None:
    """Begin to start the Ray that a batch job will use."""
    _begin_ray(chosen, pipeline.batch.num_actors or 1, BATCH_IMPORTS)


def _begin_ray(chosen: "Settings", processes: int, imports: Sequence[str]) -> None:
    """Begin to start Ray, unless the command uses a cluster or a Ray that runs."""
    if chosen.ray_address != EMBEDDED:
        return
    warm = chosen.warm_ray()
    if warm is not None:
        warm.prepare(processes)
    else:
        from millrace.models.ray.embedded import begin_embedded

        begin_embedded(processes, imports)


def end_left_runs() -> None:
    """End the MLflow and Prefect runs of this home's commands whose processes are gone."""
    from millrace.flows import tool_variables
    from millrace.flows.deployments import left_flow_runs
    from millrace.models.registry import open_runs

    with suppress(Exception):  # the next command retries
        chosen = tool_variables.apply(load_settings())
        if any((chosen.run / open_runs.FOLDER).glob("*.json")):
            from millrace.models.registry import tracking

            tracking.end_left_runs(chosen.run)
        left_flow_runs.mark_left_runs(chosen.run)


def report(line: str) -> None:
    """Print a line on standard error."""
    sys.stderr.write(safe(line) + "\n")
