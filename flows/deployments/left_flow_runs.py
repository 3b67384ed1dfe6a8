"""End in Prefect the flow runs of commands that are gone: killed, or ended by Ray's core.

A run that a command makes has no deployment, so the deployments' process does not look after it.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from millrace.models.registry.open_runs import LockedNote, taken

FOLDER = "open_flow_runs"
API = "PREFECT_API_URL"


@contextmanager
def noted_flow_run(folder: Path) -> Iterator[None]:
    """Take note of the flow run that is under way; one of a temporary server ends with that.

    Args:
        folder: of what is true only while something runs.
    """
    from prefect.runtime import flow_run

    if API not in os.environ or not flow_run.id:
        yield
        return
    note = LockedNote(folder / FOLDER / f"{flow_run.id}.json")
    note.write({"api": os.environ[API], "id": str(flow_run.id)})
    try:
        yield
    finally:
        note.forget()


def end_left(folder: Path) -> None:
    """Mark as crashed the flow runs whose processes are gone, where the server is the same.

    Args:
        folder: of what is true only while something runs.
    """
    for file in (folder / FOLDER).glob("*.json"):
        with suppress(OSError), taken(file) as found:
            if found is not None and found["api"] == os.environ.get(API):
                _crash(found["id"])
                file.unlink(missing_ok=True)


def _crash(id: str) -> None:
    from uuid import UUID

    from prefect.client.orchestration import get_client
    from prefect.exceptions import ObjectNotFound
    from prefect.states import Crashed

    with suppress(ObjectNotFound), get_client(sync_client=True) as client:
        run = client.read_flow_run(UUID(id))
        if run.state is None or not run.state.is_final():
            message = "Its process ended without a word: its Ray is gone, or it was killed."
            client.set_flow_run_state(run.id, Crashed(message=message), force=True)
