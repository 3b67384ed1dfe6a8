"""Ray's Jobs API: submits jobs to a cluster and follows them, without joining the cluster."""

import logging
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import AuthenticationError
from ray.job_submission import JobDetails, JobSubmissionClient

from millrace.models.common.errors import InputError, TransientError, WorkError

TIMEOUT_S = 30.0
"""Longest wait for the cluster to begin an answer, or to continue it."""
NOT_FOUND = 404


@dataclass(frozen=True)
class RayJob:
    """A submitted job, as the cluster reports it.

    Attributes:
        id: its submission id.
        status: Ray's status: `PENDING`, `RUNNING`, `STOPPED`, `SUCCEEDED` or `FAILED`.
        started: when it was submitted, milliseconds since 1970.
        metadata: metadata that it was submitted with.
        message: Ray's message about the status.
        error_type: Ray's type of the failure; empty if the job has not failed.
        exit_code: exit code of its process; None if the process has not ended by itself.
    """

    id: str
    status: str
    started: int = 0
    metadata: Mapping[str, str] = field(default_factory=dict)
    message: str = ""
    error_type: str = ""
    exit_code: int | None = None

    @property
    def is_alive(self) -> bool:
        """Whether the job runs or waits to run."""
        return self.status in ("PENDING", "RUNNING")


class RayJobs:
    """The jobs of one cluster.

    Args:
        address: address of the cluster's dashboard, `http://host:8265`.

    Raises:
        InputError: there is no Jobs API, the token is missing or wrong, or Ray's version differs.
        TransientError: nothing answers at the address.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        # Hide Ray's log lines about the files that it packs and uploads.
        for name in ("ray.dashboard.modules.dashboard_sdk", "ray._private.runtime_env.packaging"):
            logging.getLogger(name).setLevel(logging.WARNING)
        with _translate_errors(address):
            self._client = _Client(address)
            version = self._client.cluster_version()
        if version.split(".")[:2] != ray.__version__.split(".")[:2]:
            raise InputError(
                f"the Ray cluster at {address} runs another version of Ray than this installation",
                seen=f"Ray {version}",
                valid=f"Ray {ray.__version__}",
                hint="install this Ray version and Millrace's dependencies on the cluster's nodes",
            )

    def submit(
        self,
        id: str,
        entrypoint: str,
        runtime_env: Mapping[str, Any],
        metadata: Mapping[str, str],
    ) -> None:
        """Submit a job.

        Args:
            id: its submission id, unique on the cluster.
            entrypoint: its command.
            runtime_env: Ray's runtime environment; a local `working_dir` is uploaded, unless the
                cluster has it already.
            metadata: stored with the job; everyone who may see the cluster can read it.

        Raises:
            TransientError: the cluster does not answer.
            WorkError: the cluster rejects the job.
        """
        with _translate_errors(self.address):
            self._client.submit_job(
                entrypoint=entrypoint,
                submission_id=id,
                runtime_env=dict(runtime_env),
                metadata=dict(metadata),
            )

    def all(self) -> list[RayJob]:
        """Return every job that was ever submitted to the cluster.

        Raises:
            TransientError: the cluster does not answer.
        """
        with _translate_errors(self.address):
            return [_read_job(each) for each in self._client.list_jobs() if each.submission_id]

    def job(self, id: str) -> RayJob | None:
        """Return a job; None if the cluster does not know it.

        Raises:
            TransientError: the cluster does not answer.
        """
        with _translate_errors(self.address):
            try:
                return _read_job(self._client.get_job_info(id))
            except _RejectedRequest as rejected:
                if rejected.status == NOT_FOUND:
                    return None
                raise

    def log(self, id: str) -> str:
        """Return the whole output of a job.

        Raises:
            TransientError: the cluster does not answer.
        """
        with _translate_errors(self.address):
            return str(self._client.get_job_logs(id))

    def stop(self, id: str) -> None:
        """Stop a job; do nothing if it has ended or does not exist.

        Raises:
            TransientError: the cluster does not answer.
        """
        with _translate_errors(self.address):
            try:
                self._client.stop_job(id)
            except _RejectedRequest as rejected:
                if rejected.status != NOT_FOUND:
                    raise


class _RejectedRequest(Exception):
    """The cluster answered with an HTTP status other than 200."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status, self.text = status, text


class _Client(JobSubmissionClient):
    """Ray's client, with a timeout, and with errors that carry the HTTP status."""

    def cluster_version(self) -> str:
        """Return the version of Ray that the cluster runs."""
        return str(self._do_request("GET", "/api/version").json()["ray_version"])

    def _do_request(self, method: str, endpoint: str, **options: Any) -> Any:
        return super()._do_request(method, endpoint, timeout=TIMEOUT_S, **options)

    def _raise_error(self, r: Any) -> None:
        raise _RejectedRequest(r.status_code, r.text)


@contextmanager
def _translate_errors(address: str) -> Iterator[None]:
    """Raise errors of Ray's client as errors of Millrace."""
    try:
        yield
    except AuthenticationError as error:
        raise InputError(
            f"the Ray cluster at {address} rejects the token of this client",
            seen=str(error).splitlines()[0].split(". ")[0],
            valid="the token that the cluster was started with",
            hint="set RAY_AUTH_TOKEN, or RAY_AUTH_TOKEN_PATH to a file with it; "
            "RAY_AUTH_MODE=disabled is for a cluster that needs no token",
        ) from error
    except _RejectedRequest as rejected:
        kind = TransientError if rejected.status >= 500 else WorkError
        last = (rejected.text.strip() or "no reason").splitlines()[-1]
        raise kind(
            f"the Ray cluster at {address} refused a request",
            seen=f"status {rejected.status}: {last}",
            hint="see the logs of the cluster's dashboard and of its job agent",
        ) from rejected
    except (RuntimeError, ValueError, KeyError) as error:  # the answer is not a Jobs API's
        raise InputError(
            f"there is no Jobs API of Ray at {address}",
            seen=str(error).splitlines()[0],
            valid="the address of a Ray dashboard, http://host:8265",
            hint="check RAY_ADDRESS; the cluster needs `ray[default]` and a running dashboard",
        ) from error
    except OSError as error:
        raise TransientError(
            f"no Ray cluster answers at {address}",
            seen=_first_cause(error),
            valid="the address of a running Ray dashboard, http://host:8265",
            hint="check RAY_ADDRESS, or unset it to use the embedded Ray; `ray start --head` starts"
            " a dashboard if `ray[default]` is installed and the dashboard is not switched off",
        ) from error


def _first_cause(error: BaseException) -> str:
    """Return the operating system's message, which three libraries have wrapped."""
    while error.__context__ is not None:
        error = error.__context__
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def _read_job(details: JobDetails) -> RayJob:
    return RayJob(
        id=str(details.submission_id),
        status=str(details.status.value),
        started=int(details.start_time or 0),
        metadata=dict(details.metadata or {}),
        message=details.message or "",
        error_type=details.error_type or "",
        exit_code=details.driver_exit_code,
    )


ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("export", "flows", "models", "serving", "tasks")
PIPELINE = "pipeline.yaml"


def copy_code(folder: Path, pipeline_file: Path) -> None:
    """Copy Millrace's code, and a pipeline file as `PIPELINE`, into a folder for a job.

    The user's modules beside the file are left out, because the registered version contains
    everything that they produced.

    Args:
        folder: an existing folder.
        pipeline_file: the YAML file.
    """
    ignored = shutil.ignore_patterns("__pycache__")
    for name in PACKAGES:
        shutil.copytree(ROOT / name, folder / "millrace" / name, ignore=ignored)
    shutil.copyfile(pipeline_file, folder / PIPELINE)
