"""What `up` and `status` print beside their table: pages, the login, what is scheduled."""

import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING

from millrace.models.registry.mlflow_pages import REGISTRY, page

if TYPE_CHECKING:
    from millrace.flows.deployments.schedule_state import Schedule, Schedules
    from millrace.flows.services.control import Status


def describe_status(status: "Status") -> Iterator[str]:
    """Yield lines: where to promote models, how to log in to Prefect, and what is scheduled.

    There are none if Millrace does not run.
    """
    if not status.running:
        return
    mlflow = next((each.address for each in status.services if each.name == "mlflow"), "")
    if mlflow:
        yield f"registry: {page(mlflow, REGISTRY)}"
    if status.prefect_login:
        command = f"cat {shlex.quote(status.prefect_login)}; echo"
        yield f"Prefect's UI asks each browser once for a password: the whole output of `{command}`"
    if status.schedules is None:
        yield "scheduled: Prefect was not checked yet"
    else:
        yield from _describe_schedules(status.schedules)


def _describe_schedules(found: "Schedules") -> Iterator[str]:
    by_file: dict[str, list[str]] = {}
    for schedule in found.schedules:
        if schedule.file:
            by_file.setdefault(schedule.file, []).append(_describe_schedule(schedule))
    for file, schedules in by_file.items():
        yield f"scheduled: {file} ({'; '.join(schedules)})"
    if not by_file:
        yield "scheduled: no pipeline file; name yours in MILLRACE_PIPELINES"
    for fault in found.faults:
        yield f"not as it stands: {fault.file}: {fault.reason}"
    if not found.settled:
        yield "Prefect does not hold these schedules at the moment; they are being put back"
    for each in found.put_back[-3:]:
        yield f"put back: {each.deployment} at {each.at}; {each.what}"


def _describe_schedule(schedule: "Schedule") -> str:
    when = f"{schedule.cron} {schedule.timezone}" if schedule.cron else "only on request"
    return f"{schedule.deployment} {when}{', paused in Prefect' if schedule.paused else ''}"
