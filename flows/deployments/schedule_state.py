"""The files in the home's folder `run` that `up` and the deployments' process exchange.

The newest `millrace up` writes the requested patterns to `pipelines.json`. After each check, the
deployments' process writes the schedules in Prefect to `schedules.json`.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from millrace.flows.deployments.scheduled_files import ScheduledPipeline, ScheduleFault
from millrace.models.common.private_files import replace_private
from millrace.models.config.batch_spec import ScheduleSpec

PATTERNS_FILE, STATE_FILE = "pipelines.json", "schedules.json"


@dataclass(frozen=True)
class Schedule:
    """One deployment in Prefect.

    Attributes:
        deployment: the deployment's name.
        file: the pipeline file; empty for a deployment without one.
        cron: when it runs; None: only on request.
        timezone: the time zone of `cron`.
        paused: whether a user has paused it in Prefect; Millrace leaves it paused.
    """

    deployment: str
    file: str = ""
    cron: str | None = None
    timezone: str = "UTC"
    paused: bool = False


@dataclass(frozen=True)
class PutBack:
    """A deployment that was removed or changed in Prefect, and that Millrace restored.

    Attributes:
        deployment: the deployment's name.
        what: the difference that was found.
        at: the time of the repair, ISO 8601 in UTC.
    """

    deployment: str
    what: str
    at: str


@dataclass(frozen=True)
class Schedules:
    """What is scheduled, as the deployments' process last saw it.

    Attributes:
        pid: the process id of the deployments' process.
        patterns: the files and globs that it schedules.
        settled: whether Prefect's deployments match the specs.
        schedules: the deployments with their schedules.
        faults: files whose present content is not scheduled.
        put_back: the newest repairs.
        kept: for each file, the name and the schedule of its last valid content.
    """

    pid: int
    patterns: tuple[str, ...] = ()
    settled: bool = False
    schedules: tuple[Schedule, ...] = ()
    faults: tuple[ScheduleFault, ...] = ()
    put_back: tuple[PutBack, ...] = ()
    kept: Mapping[str, Mapping[str, Any]] | None = None

    def last_valid(self) -> dict[str, ScheduledPipeline]:
        """Return the last valid content of each file, by path."""
        pipelines = {}
        for file, content in (self.kept or {}).items():
            with suppress(ValueError, KeyError, TypeError):
                schedule = ScheduleSpec.model_validate(content["schedule"])
                pipelines[file] = ScheduledPipeline(str(content["name"]), Path(file), schedule)
        return pipelines

    def as_json(self) -> dict[str, Any]:
        """Return what `millrace status --json` prints."""
        names = ("settled", "schedules", "faults", "put_back")
        return {name: getattr(self, name) for name in names}


_ADAPTER = TypeAdapter(Schedules)


def dump_pipelines(pipelines: Mapping[str, ScheduledPipeline]) -> dict[str, dict[str, Any]]:
    """Return pipelines in the form of `Schedules.kept`."""
    return {
        file: {"name": each.name, "schedule": each.schedule.model_dump(mode="json")}
        for file, each in pipelines.items()
    }


def write_patterns(run: Path, patterns: tuple[str, ...]) -> None:
    """Request that these files and globs be scheduled."""
    replace_private(run / PATTERNS_FILE, json.dumps(list(patterns)) + "\n")


def read_patterns(run: Path, default: tuple[str, ...]) -> tuple[str, ...]:
    """Return the files and globs that were requested last, or `default`."""
    try:
        return tuple(str(each) for each in json.loads((run / PATTERNS_FILE).read_text()))
    except (OSError, ValueError, TypeError):
        return default


def write(run: Path, state: Schedules) -> None:
    """Replace the stored state; its file is readable by this user only."""
    replace_private(run / STATE_FILE, json.dumps(asdict(state), indent=1) + "\n")


def read(run: Path) -> Schedules | None:
    """Return the state that was written last; None if it cannot be read."""
    try:
        return _ADAPTER.validate_json((run / STATE_FILE).read_bytes())
    except (OSError, ValueError):
        return None
