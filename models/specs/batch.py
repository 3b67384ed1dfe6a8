"""The parts `batch` and `schedule`: how rows are scored, and what runs when."""

from datetime import UTC, datetime
from typing import Annotated
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError
from pydantic import AfterValidator, Field

from models.specs.base import Spec


class BatchSpec(Spec):
    """How batch inference scores."""

    batch_size: int = Field(4096, ge=1, description="Rows per call of the model.")
    num_actors: int | None = Field(
        None, ge=1, description="Actors that score; one per core when left out."
    )
    input: str | None = Field(
        None,
        description="Rows to score: a file, a folder, a glob, a URI or a Delta table; the newest "
        "snapshot of the dataset when left out.",
    )


def _cron(line: str) -> str:
    try:
        CronSim(line, datetime.now(UTC))
    except CronSimError as error:
        raise ValueError(f"is not a cron line like '0 3 * * 1': {error}") from error
    return line


def _timezone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ValueError("is not a time zone like UTC or Europe/Berlin") from error
    return name


Cron = Annotated[str, AfterValidator(_cron)]


Timezone = Annotated[str, AfterValidator(_timezone)]


class ScheduleSpec(Spec):
    """Cron lines of the scheduled deployments, in `timezone`; null switches one off."""

    train: Cron | None = Field("0 3 * * 1", description="When to retrain.")
    score: Cron | None = Field("0 2 * * *", description="When to score.")
    timezone: Timezone = Field("UTC", description="Timezone of the cron lines.")
