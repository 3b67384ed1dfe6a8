"""Changes what is scheduled, while `up` runs or before: files, pauses, and a run at once."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from millrace.flows.deployments import schedule_state
from millrace.flows.deployments.catch_up import TAG, assign_to_home, home_id, is_of_another_home
from millrace.flows.deployments.deployment_specs import DeploymentSpec, build_specs
from millrace.flows.deployments.own_schedules import read_own, write_own
from millrace.flows.deployments.schedule_loop import to_existing
from millrace.flows.deployments.scheduled_files import (
    ScheduledPipeline,
    ScheduleFault,
    read_pipeline,
    read_pipeline_files,
    select_pipelines,
)
from millrace.flows.run_state import is_supervisor_alive
from millrace.flows.settings import Settings, absolute
from millrace.models.common.errors import InputError, TransientError, nearest

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.responses import DeploymentResponse

ADDED_SECONDS = 15.0
"""`up` registers a file that was added within this time."""


@dataclass(frozen=True)
class Wanted:
    """What is to be scheduled, as the files are now.

    Attributes:
        specs: the deployments.
        pipelines: the pipelines that they are of.
        faults: files whose present content is not scheduled.
        paused: the deployments that are paused in Prefect, as `up` last saw them.
    """

    specs: tuple[DeploymentSpec, ...]
    pipelines: tuple[ScheduledPipeline, ...]
    faults: tuple[ScheduleFault, ...]
    paused: frozenset[str]


def read_wanted(settings: Settings) -> Wanted:
    """Return what the running `up` schedules, or the next one would.

    Raises:
        InputError: the file of deployments cannot be read.
    """
    own, chosen = read_own(settings.home), settings.pipeline_patterns()
    state = schedule_state.read(settings.run)
    if is_supervisor_alive(settings.run):
        chosen = schedule_state.read_patterns(settings.run, chosen)
    files = own.scheduled(read_pipeline_files(own.patterns(chosen)))
    known = state.last_valid() if state else {}
    pipelines, faults = select_pipelines(files, known)
    specs = assign_to_home(build_specs(pipelines, settings.deployments), settings)
    paused = frozenset(each.deployment for each in state.schedules if each.paused) if state else ()
    return Wanted(specs, pipelines, faults, frozenset(paused))


def add_file(settings: Settings, file: Path) -> tuple[str, ...]:
    """Schedule a pipeline file, and return the names of its deployments.

    Raises:
        InputError: the file is not valid, or another scheduled file has its name.
    """
    path = absolute(file)
    pipeline = read_pipeline(path)
    for other in read_wanted(settings).pipelines:
        if other.file != path and other.name == pipeline.name:
            raise InputError(
                f"the name {pipeline.name!r} is scheduled already",
                seen=f"{path} and {other.file}",
                valid="a different name for each scheduled pipeline",
                hint=f"change `name`, or `millrace schedule remove {other.file}` first",
            )
    write_own(settings.home, read_own(settings.home).with_added(str(path)))
    return tuple(
        spec.name
        for spec in read_wanted(settings).specs
        if spec.parameters.get("pipeline_file") == str(path)
    )


def remove_file(settings: Settings, name: str) -> str:
    """Schedule a file no more, named by its path or by its pipeline's name; return the path.

    Raises:
        InputError: no such file is scheduled.
    """
    files = {str(each.file): each.name for each in read_wanted(settings).pipelines}
    path = str(absolute(Path(name)))
    of_name = [file for file, pipeline in files.items() if name == pipeline]
    own = read_own(settings.home)
    found = path if path in (*files, *own.added) else next(iter(of_name), None)
    if found is None:
        raise InputError(
            f"{name} is not scheduled",
            valid=", ".join(files) or "no pipeline file is scheduled",
            hint=nearest(name, list(files)) or "`millrace schedule list` shows what is",
        )
    write_own(settings.home, own.with_removed(found))
    return found


def pause(settings: Settings, name: str, *, paused: bool) -> tuple[str, ...]:
    """Pause or resume deployments, and return their names.

    Args:
        settings: the settings of this home.
        name: a deployment, such as `score-digits`, or a pipeline, of which both are meant.
        paused: whether they are to be paused.

    Raises:
        InputError: there is no such deployment.
        TransientError: Prefect does not answer.
    """
    with _prefect(settings) as client:
        _await_added(settings, client, name)
        found = _find(settings, client, name)
        for each in found:
            change = client.pause_deployment if paused else client.resume_deployment
            change(each.id)
            for schedule in () if paused else each.schedules:
                # one that was paused and added again has no pause itself, but its schedule has
                client.update_deployment_schedule(each.id, schedule.id, active=True)
        return tuple(each.name for each in found)


def read_paused(settings: Settings) -> frozenset[str]:
    """Return the names of this home's paused deployments, as they are in Prefect now.

    Raises:
        InputError: there is no Prefect server.
        TransientError: it does not answer.
    """
    with _prefect(settings) as client:
        known = _known(settings, client)
        return frozenset(each.name for each in known if to_existing(each).is_paused)


def run_now(settings: Settings, name: str) -> str:
    """Start a run of a deployment at once, and return its name.

    Raises:
        InputError: there is no such deployment, or the name means several.
        TransientError: Prefect does not answer.
    """
    with _prefect(settings) as client:
        _await_added(settings, client, name)
        found = _find(settings, client, name)
        if len(found) > 1:
            raise InputError(
                f"{name} has several deployments",
                valid=", ".join(each.name for each in found),
                hint=f"name one of them: `millrace schedule run-now {found[0].name}`",
            )
        run = client.create_flow_run_from_deployment(found[0].id)
        return str(run.name)


def _await_added(settings: Settings, client: "SyncPrefectClient", name: str) -> None:
    """Wait for the deployments of a file that was added a moment ago; not for long."""
    if not is_supervisor_alive(settings.run):
        return
    specs = read_wanted(settings).specs
    suffix = _suffix(settings)
    wanted = {each.name for each in specs if name in (each.name, _pipeline_of(each.name, suffix))}
    until = time.monotonic() + ADDED_SECONDS
    while wanted - {each.name for each in _known(settings, client)} and time.monotonic() < until:
        time.sleep(0.5)


def _known(settings: Settings, client: "SyncPrefectClient") -> "list[DeploymentResponse]":
    """Return this home's deployments of pipeline files."""
    from prefect.client.schemas import filters

    wanted = filters.DeploymentFilter(tags=filters.DeploymentFilterTags(all_=[TAG]))
    home = home_id(settings)
    return [
        each
        for each in client.read_deployments(deployment_filter=wanted)
        if not is_of_another_home(each.tags, home) and "pipeline_file" in each.parameters
    ]


def _suffix(settings: Settings) -> str:
    """Return the end of deployments' names on a Prefect server of several homes."""
    return f"-{home_id(settings)}" if settings.prefect_api_url is not None else ""


def _pipeline_of(deployment: str, suffix: str) -> str:
    """Return the name of a deployment's pipeline: `digits` of `score-digits`."""
    return deployment.removesuffix(suffix).partition("-")[2]


def _find(settings: Settings, client: "SyncPrefectClient", name: str) -> "list[DeploymentResponse]":
    """Return this home's deployments with a name, or of the pipeline with it."""
    known, suffix = _known(settings, client), _suffix(settings)
    found = [each for each in known if each.name == name]
    found = found or [each for each in known if _pipeline_of(each.name, suffix) == name]
    if not found:
        names = sorted(each.name for each in known)
        raise InputError(
            f"there is no deployment {name!r}",
            valid=", ".join(names) or "no pipeline file is scheduled",
            hint=nearest(name, names) or "`millrace schedule list` shows what is scheduled",
        )
    return sorted(found, key=lambda each: each.name)


@contextmanager
def _prefect(settings: Settings) -> "Iterator[SyncPrefectClient]":
    """Open a client of the Prefect server.

    Raises:
        InputError: there is no Prefect server.
        TransientError: it does not answer.
    """
    if settings.prefect_api() is None:
        raise InputError(
            "nothing is scheduled now, because `up` does not run",
            hint="start it with `millrace up`; `schedule add` and `remove` work without it",
        )
    import httpx
    from prefect.client.orchestration import get_client
    from prefect.exceptions import PrefectException

    try:
        with get_client(sync_client=True) as client:
            yield client
    except (PrefectException, httpx.HTTPError, OSError) as error:
        raise TransientError(
            "Prefect does not answer as it should",
            seen=str(error).splitlines()[0] if str(error) else type(error).__name__,
            hint="`millrace status` shows whether it runs",
        ) from error
