"""What `up` and the deployments' process exchange, in files of the home's folder `run`.

The newest `millrace up` writes the requested patterns to `pipelines.json`. The deployments' process
writes what Prefect holds to `schedules.json`, after each check.
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
        deployment: its name.
        file: the pipeline file; empty for a deployment that takes none.
        cron: when it runs; None for only on request.
        timezone: of `cron`.
        paused: whether somebody has paused it in Prefect; it stays so.
    """

    deployment: str
    file: str = ""
    cron: str | None = None
    timezone: str = "UTC"
    paused: bool = False


@dataclass(frozen=True)
class PutBack:
    """A deployment that somebody removed or changed, and that was restored.

    Attributes:
        deployment: its name.
        what: what was wrong with it.
        at: when that was found, ISO 8601 in UTC.
    """

    deployment: str
    what: str
    at: str


@dataclass(frozen=True)
class Schedules:
    """What is scheduled, as the deployments' process last saw it.

    Attributes:
        pid: that process.
        patterns: the files and globs that it schedules.
        settled: whether Prefect holds what it should.
        schedules: what Prefect holds.
        faults: files whose present content is not scheduled.
        put_back: the newest repairs.
        kept: the name and the schedule of each file when it was last valid.
    """

    pid: int
    patterns: tuple[str, ...] = ()
    settled: bool = False
    schedules: tuple[Schedule, ...] = ()
    faults: tuple[ScheduleFault, ...] = ()
    put_back: tuple[PutBack, ...] = ()
    kept: Mapping[str, Mapping[str, Any]] | None = None

    def last_valid(self) -> dict[str, ScheduledPipeline]:
        """Return the content of each file when it was last valid."""
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
    """Return the files and globs that were requested last."""
    try:
        return tuple(str(each) for each in json.loads((run / PATTERNS_FILE).read_text()))
    except (OSError, ValueError, TypeError):
        return default


def write(run: Path, state: Schedules) -> None:
    """Replace the state, readable by this user only."""
    replace_private(run / STATE_FILE, json.dumps(asdict(state), indent=1) + "\n")


def read(run: Path) -> Schedules | None:
    """Return the state that was written last; None if there is none to read."""
    try:
        return _ADAPTER.validate_json((run / STATE_FILE).read_bytes())
    except (OSError, ValueError):
        return None
