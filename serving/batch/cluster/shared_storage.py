"""The storage that a cluster must share with an installation: checked before and inside a job.

A Ray dashboard on loopback may belong to a cluster on other machines, behind a forwarded port. On
these machines, a folder of the same name may be another folder. So the flow writes a file into the
folder of the tables, and the job must find this file.
"""

from contextlib import suppress
from urllib.parse import urlsplit

from millrace.models.common.errors import InputError, WorkError
from millrace.models.common.installation import Installation, is_this_machine
from millrace.models.data.folder import Folder
from millrace.serving.batch.job_state import JOBS

LOCAL = ("", "file")
"""URI schemes of folders. A URI with another scheme names the same storage on every machine."""


def require_shared(installation: Installation, source: str | None) -> None:
    """Raise unless a cluster on another machine can reach what a job needs.

    Args:
        installation: the installation, with the cluster's address.
        source: the input; None: the dataset's table.

    Raises:
        InputError: the cluster cannot reach MLflow, the tables or the input. Or the address of
            MLflow contains a password.
    """
    registry = urlsplit(installation.tracking_uri)
    if registry.password:
        raise InputError(
            "MLFLOW_TRACKING_URI contains a password, which everyone who may see the cluster's "
            "jobs would see",
            valid="an address without a password",
            hint="set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, on the nodes as well",
        )
    if is_this_machine(installation.ray_address):
        return
    if not registry.scheme.startswith("http") or is_this_machine(installation.tracking_uri):
        raise _unreachable(
            "MLflow", installation.tracking_uri, "an MLflow server", "MLFLOW_TRACKING_URI"
        )
    if "://" not in installation.tables_uri:
        raise _unreachable(
            "the tables",
            installation.tables_uri,
            "s3://… or a mounted folder file:///…",
            "MILLRACE_TABLES",
        )
    if source is not None and "://" not in source:
        raise _unreachable(
            "the input", source, "s3://… or a mounted folder file:///…", "--input or batch.input"
        )


def leave_proof(table: str, submission: str) -> None:
    """Write the file that a job must find, if the tables are in a folder.

    Args:
        table: URI of the output.
        submission: the job's id.

    Raises:
        WorkError: the file cannot be written.
    """
    if _is_folder(table):
        try:
            _jobs(table).write_json(f"{submission}.json", {"submission": submission})
        except OSError as error:
            raise WorkError(
                f"the table {table} cannot be written",
                seen=error,
                hint="make the folder writable, or set MILLRACE_TABLES to another folder",
            ) from error


def take_proof(table: str, submission: str) -> None:
    """Delete the file that the flow has written; raise if this machine does not see the file.

    Args:
        table: URI of the output.
        submission: the job's id.

    Raises:
        InputError: this machine does not see the file.
    """
    if _is_folder(table) and _jobs(table).read_json(f"{submission}.json") is None:
        raise InputError(
            "the cluster does not see the tables of this installation",
            seen=f"on the cluster's head node there is another folder, or none, at {table}",
            valid="storage that all nodes and this machine see",
            hint="set MILLRACE_TABLES to s3://… or to a folder that all of them mount",
        )
    remove_proof(table, submission)


def remove_proof(table: str, submission: str) -> None:
    """Delete the file that was written for a job, if it exists."""
    if _is_folder(table):
        filesystem, path = _jobs(table).location
        with suppress(FileNotFoundError):  # the job has deleted it
            filesystem.delete_file(f"{path}/{submission}.json")


def _is_folder(table: str) -> bool:
    return urlsplit(table).scheme in LOCAL


def _jobs(table: str) -> Folder:
    return Folder(f"{table}/{JOBS}")


def _unreachable(what: str, seen: str, valid: str, setting: str) -> InputError:
    return InputError(
        f"a cluster on other machines cannot reach {what} of this machine",
        seen=seen,
        valid=f"{valid}, which all nodes of the cluster can reach",
        hint=f"set {setting} to such an address",
    )
