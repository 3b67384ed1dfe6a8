"""Marks as crashed the flow runs of commands that were killed, or ended by Ray's core.

A run that a command starts has no deployment, so the deployments' process does not mark it.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import UUID

from millrace.models.registry.open_runs import LockedNote, lock_left_note

FOLDER = "open_flow_runs"
API = "PREFECT_API_URL"


@contextmanager
def record_flow_run(run: Path) -> Iterator[None]:
    """Keep a locked record of the flow run while the block runs.

    A run on a temporary Prefect server gets no record, because the server ends with its command.

    Args:
        run: the folder `run` of the home.
    """
    from prefect.runtime import flow_run

    if API not in os.environ or not flow_run.id:
        yield
        return
    note = LockedNote(run / FOLDER / f"{flow_run.id}.json")
    note.write({"api": os.environ[API], "id": str(flow_run.id)})
    try:
        yield
    finally:
        note.forget()


def mark_left_runs(run: Path) -> None:
    """Mark as crashed the flow runs of this Prefect server whose processes are gone.

    Args:
        run: the folder `run` of the home.
    """
    for file in (run / FOLDER).glob("*.json"):
        with suppress(OSError), lock_left_note(file) as content:
            if content is not None and content["api"] == os.environ.get(API):
                _mark_crashed(UUID(content["id"]))
                file.unlink(missing_ok=True)


def _mark_crashed(run_id: UUID) -> None:
    from prefect.client.orchestration import get_client
    from prefect.exceptions import ObjectNotFound
    from prefect.states import Crashed

    with suppress(ObjectNotFound), get_client(sync_client=True) as client:
        run = client.read_flow_run(run_id)
        if run.state is None or not run.state.is_final():
            message = (
                "The run's process ended without a report, because Ray stopped or the process was "
                "killed."
            )
            client.set_flow_run_state(run.id, Crashed(message=message), force=True)
