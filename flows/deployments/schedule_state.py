"""What `up` and the deployments' process tell each other, in files of the home's folder `run`.

`pipelines.json` is what was asked for last, by the newest `millrace up`. `schedules.json` is what
Prefect holds, written by the deployments' process after it has looked.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from millrace.flows.deployments.deployment_specs import Scheduled
from millrace.flows.deployments.schedule_files import Fault
from millrace.models.common.private_files import replace_private
from millrace.models.config.batch_spec import ScheduleSpec

ASKED, TRUE = "pipelines.json", "schedules.json"
MOST_KEPT = 20


@dataclass(frozen=True)
class Schedule:
    """One deployment as Prefect has it.

    Attributes:
        deployment: its name.
        file: the pipeline file; empty for a deployment that takes none.
        cron: when it runs; None for only when asked.
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
    """A deployment that somebody removed or changed, and that was made right again.

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
        faults: files that are not scheduled as they stand.
        put_back: the newest repairs.
        kept: what each file said when it was last valid: its name and its schedule.
    """

    pid: int
    patterns: tuple[str, ...] = ()
    settled: bool = False
    schedules: tuple[Schedule, ...] = ()
    faults: tuple[Fault, ...] = ()
    put_back: tuple[PutBack, ...] = ()
    kept: Mapping[str, Mapping[str, Any]] | None = None

    def pipelines(self) -> dict[str, Scheduled]:
        """Return what each file said when it was last valid."""
        found = {}
        for file, said in (self.kept or {}).items():
            with suppress(ValueError, KeyError, TypeError):
                spec = ScheduleSpec.model_validate(said["schedule"])
                found[file] = Scheduled(str(said["name"]), Path(file), spec)
        return found

    def as_json(self) -> dict[str, Any]:
        """Return what `millrace status --json` prints."""
        told = ("settled", "schedules", "faults", "put_back")
        return {name: getattr(self, name) for name in told}


def kept_of(pipelines: Mapping[str, Scheduled]) -> dict[str, dict[str, Any]]:
    """Return pipelines in the form of `Schedules.kept`."""
    return {
        file: {"name": each.name, "schedule": each.schedule.model_dump(mode="json")}
        for file, each in pipelines.items()
    }


def ask(run: Path, patterns: tuple[str, ...]) -> None:
    """Leave word of the files to schedule."""
    replace_private(run / ASKED, json.dumps(list(patterns)) + "\n")


def asked(run: Path, otherwise: tuple[str, ...]) -> tuple[str, ...]:
    """Return the files that are to be scheduled."""
    try:
        return tuple(str(each) for each in json.loads((run / ASKED).read_text()))
    except (OSError, ValueError, TypeError):
        return otherwise


def write(run: Path, state: Schedules) -> None:
    """Replace the state, readable by this user only."""
    replace_private(run / TRUE, json.dumps(asdict(state), indent=1) + "\n")


def read(run: Path) -> Schedules | None:
    """Return the state that was written last; None if there is none to read."""
    try:
        raw = json.loads((run / TRUE).read_text())
        return Schedules(
            pid=raw["pid"],
            patterns=tuple(raw["patterns"]),
            settled=raw["settled"],
            schedules=tuple(Schedule(**each) for each in raw["schedules"]),
            faults=tuple(Fault(**each) for each in raw["faults"]),
            put_back=tuple(PutBack(**each) for each in raw["put_back"]),
            kept=raw["kept"],
        )
    except (OSError, ValueError, TypeError, KeyError):
        return None
