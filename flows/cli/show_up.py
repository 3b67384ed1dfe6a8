"""What `up` and `status` say beside their table: pages, the login, what is scheduled."""

import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING

from millrace.models.registry.mlflow_pages import REGISTRY, page

if TYPE_CHECKING:
    from millrace.flows.deployments.schedule_state import Schedule, Schedules
    from millrace.flows.services.control import Status


def lines_of_status(status: "Status") -> tuple[str, ...]:
    """Return where models are promoted, how to log in to Prefect, and what is scheduled.

    Nothing where Millrace does not run.
    """
    if not status.running:
        return ()
    mlflow = next((each.address for each in status.services if each.name == "mlflow"), "")
    registry = [f"registry: {page(mlflow, REGISTRY)}"] if mlflow else []
    return (*registry, *_login(status), *_schedules(status.schedules))


def _login(status: "Status") -> Iterator[str]:
    if status.prefect_login:
        command = f"cat {shlex.quote(status.prefect_login)}; echo"
        yield f"Prefect's pages ask for a password, once in a browser: `{command}` shows it, whole"


def _schedules(found: "Schedules | None") -> Iterator[str]:
    if found is None:
        yield "scheduled: Prefect was not looked at yet"
        return
    by_file: dict[str, list[str]] = {}
    for schedule in found.schedules:
        if schedule.file:
            by_file.setdefault(schedule.file, []).append(_in_words(schedule))
    for file, schedules in by_file.items():
        yield f"scheduled: {file} ({'; '.join(schedules)})"
    if not by_file:
        yield "scheduled: no pipeline file; name yours in MILLRACE_PIPELINES"
    yield from _faults(found)


def _faults(found: "Schedules") -> Iterator[str]:
    for fault in found.faults:
        yield f"not as it stands: {fault.file}: {fault.reason}"
    if not found.settled:
        yield "Prefect does not hold these schedules at the moment; they are being put back"
    for each in found.put_back[-3:]:
        yield f"put back: {each.deployment} at {each.at}; {each.what}"


def _in_words(schedule: "Schedule") -> str:
    when = f"{schedule.cron} {schedule.timezone}" if schedule.cron else "only when asked"
    return f"{schedule.deployment} {when}{', paused in Prefect' if schedule.paused else ''}"
