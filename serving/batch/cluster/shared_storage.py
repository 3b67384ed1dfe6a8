"""What a cluster has to see of an installation: said before a job is submitted, and proved in it.

A dashboard on loopback may be that of a cluster elsewhere, behind a forwarded port, and a folder
of the same name may be another one there. So a file that the flow leaves at the tables has to be
found by the job.
"""

from contextlib import suppress
from urllib.parse import urlsplit

from millrace.models.common.errors import InputError, WorkError
from millrace.models.common.installation import Installation, is_this_machine
from millrace.serving.batch.folder import Folder
from millrace.serving.batch.job_state import JOBS

LOCAL = ("", "file")
"""Schemes of folders; what has another one is the same everywhere."""


def require_shared(places: Installation, source: str | None) -> None:
    """Return if a cluster at another machine can see what a job needs.

    Args:
        places: of the installation; the cluster's address among them.
        source: the rows; None for a table.

    Raises:
        InputError: it cannot, or the address of MLflow holds a password.
    """
    registry = urlsplit(places.tracking_uri)
    if registry.password:
        raise InputError(
            "MLFLOW_TRACKING_URI holds a password, and everyone who may see the cluster's jobs "
            "would see it",
            valid="an address without one",
            hint="set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, on the nodes as well",
        )
    if is_this_machine(places.ray_address):
        return
    if not registry.scheme.startswith("http") or is_this_machine(places.tracking_uri):
        raise _unseen("MLflow", places.tracking_uri, "an MLflow server", "MLFLOW_TRACKING_URI")
    if "://" not in places.tables_uri:
        raise _unseen("the tables", places.tables_uri, "s3://… or file:///…", "MILLRACE_TABLES")
    if source is not None and "://" not in source:
        raise _unseen("the input", source, "s3://… or file:///…", "--input or batch.input")


def leave_proof(table: str, submission: str) -> None:
    """Leave a file for a job to find, where a folder may be another one at another machine.

    Args:
        table: URI of the output.
        submission: the job's id.

    Raises:
        WorkError: it cannot be written.
    """
    if _is_folder(table):
        try:
            _jobs(table).write_json(f"{submission}.json", {"submission": submission})
        except OSError as error:
            raise WorkError("the tables cannot be written", seen=error) from error


def take_proof(table: str, submission: str) -> None:
    """Return if the file that the flow has left is here, and take it away.

    Args:
        table: URI of the output.
        submission: the job's id.

    Raises:
        InputError: it is not.
    """
    if _is_folder(table) and _jobs(table).read_json(f"{submission}.json") is None:
        raise InputError(
            "the cluster does not see the tables of this installation",
            seen=f"on its head there is another folder, or none, at {table}",
            valid="storage that all nodes and this machine see",
            hint="set MILLRACE_TABLES to s3://… or to a folder that all of them mount",
        )
    remove_proof(table, submission)


def remove_proof(table: str, submission: str) -> None:
    """Take the file away that was left for a job, if it is there."""
    if _is_folder(table):
        filesystem, path = _jobs(table).place
        with suppress(FileNotFoundError):  # the job has taken it
            filesystem.delete_file(f"{path}/{submission}.json")


def _is_folder(table: str) -> bool:
    return urlsplit(table).scheme in LOCAL


def _jobs(table: str) -> Folder:
    return Folder(f"{table}/{JOBS}")


def _unseen(what: str, seen: str, valid: str, setting: str) -> InputError:
    return InputError(
        f"a cluster on other machines cannot see {what} of this one",
        seen=seen,
        valid=f"{valid}, which all its nodes reach",
        hint=f"set {setting}; file:///PATH says that every node has that folder mounted",
    )
