"""End in MLflow the runs of processes that are gone: killed, or ended by Ray's core."""

from contextlib import suppress
from pathlib import Path

from millrace.models.common.errors import TransientError
from millrace.models.registry.open_runs import FOLDER, Note, taken
from millrace.models.registry.tracking import check_reachable, client


def end_left(folder: Path) -> None:
    """End the runs in MLflow whose processes are gone; one that MLflow does not take stays noted.

    Args:
        folder: of what is true only while something runs.
    """
    for file in (folder / FOLDER).glob("*.json"):
        with suppress(OSError), taken(file) as found:
            if found is None:
                continue
            note = Note(**found)
            with suppress(TransientError):
                check_reachable(note.tracking_uri)
                _end(note)
                file.unlink(missing_ok=True)


def _end(note: Note) -> None:
    from mlflow.exceptions import MlflowException

    try:
        store = client(note.tracking_uri)
        if store.get_run(note.run_id).info.status != "RUNNING":
            return
        if note.why:
            store.set_tag(note.run_id, "millrace.error", note.why)
        store.set_terminated(note.run_id, note.status)
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise TransientError("MLflow did not end a run", seen=error) from error
