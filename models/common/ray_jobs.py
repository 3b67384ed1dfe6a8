"""Ray's Jobs API: jobs on a cluster that this process is no part of, and the code they run."""

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
"""For an answer to begin, or to go on."""
NOT_FOUND = 404


@dataclass(frozen=True)
class RayJob:
    """A job that was submitted, as the cluster tells of it.

    Attributes:
        id: its submission id.
        status: Ray's word: `PENDING`, `RUNNING`, `STOPPED`, `SUCCEEDED` or `FAILED`.
        started: when it was submitted, milliseconds since 1970.
        metadata: what was kept with it.
        message: Ray's words on how it stands.
        error_type: Ray's word for why it failed; empty where it did not.
        exit_code: of its process; None where it has not ended by itself.
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
        """Whether it runs, or will."""
        return self.status in ("PENDING", "RUNNING")


class RayJobs:
    """The jobs of one cluster.

    Args:
        address: of its dashboard, `http://host:8265`.

    Raises:
        InputError: no Jobs API is there, the token is missing or wrong, or Ray's version differs.
        TransientError: nothing answers.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        _quiet()
        with _told(address):
            self._client = _Client(address)
            version = self._client.cluster_version()
        _require_same(version, address)

    def submit(
        self,
        id: str,
        entrypoint: str,
        runtime_env: Mapping[str, Any],
        metadata: Mapping[str, str],
    ) -> None:
        """Submit a job.

        Args:
            id: its submission id, that nobody had before.
            entrypoint: its command.
            runtime_env: Ray's; a local `working_dir` is uploaded, unless the cluster has it.
            metadata: kept with it; everyone who may see the cluster can read it.

        Raises:
            TransientError: the cluster does not answer.
            WorkError: it refuses.
        """
        with _told(self.address):
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
        with _told(self.address):
            return [_job(each) for each in self._client.list_jobs() if each.submission_id]

    def job(self, id: str) -> RayJob | None:
        """Return a job; None where the cluster does not know it.

        Raises:
            TransientError: the cluster does not answer.
        """
        with _told(self.address):
            try:
                return _job(self._client.get_job_info(id))
            except _Refused as refused:
                if refused.status == NOT_FOUND:
                    return None
                raise

    def log(self, id: str) -> str:
        """Return all that a job has printed.

        Raises:
            TransientError: the cluster does not answer.
        """
        with _told(self.address):
            return str(self._client.get_job_logs(id))

    def stop(self, id: str) -> None:
        """Ask for the end of a job; one that is not there, or has ended, is left as it is.

        Raises:
            TransientError: the cluster does not answer.
        """
        with _told(self.address):
            try:
                self._client.stop_job(id)
            except _Refused as refused:
                if refused.status != NOT_FOUND:
                    raise


class _Refused(Exception):
    """The cluster answered with another status than 200."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status, self.text = status, text


class _Client(JobSubmissionClient):
    """Ray's client, which waits for an answer for ever, and tells a status as a sentence."""

    def cluster_version(self) -> str:
        """Return the version of Ray that the cluster runs."""
        return str(self._do_request("GET", "/api/version").json()["ray_version"])

    def _do_request(self, method: str, endpoint: str, **options: Any) -> Any:
        return super()._do_request(method, endpoint, timeout=TIMEOUT_S, **options)

    def _raise_error(self, r: Any) -> None:
        raise _Refused(r.status_code, r.text)


@contextmanager
def _told(address: str) -> Iterator[None]:
    """Raise what Ray's client raises as errors of ours."""
    try:
        yield
    except AuthenticationError as error:
        raise _unauthorized(address, error) from error
    except _Refused as refused:
        kind = TransientError if refused.status >= 500 else WorkError
        last = (refused.text.strip() or "no reason").splitlines()[-1]
        raise kind(
            f"the Ray cluster at {address} refused a request",
            seen=f"status {refused.status}: {last}",
            hint="see the logs of its dashboard and of its job agent",
        ) from refused
    except (RuntimeError, ValueError, KeyError) as error:  # it answers, and in no form of Ray's
        raise InputError(
            f"there is no Jobs API of Ray at {address}",
            seen=str(error).splitlines()[0],
            valid="the address of a Ray dashboard, http://host:8265",
            hint="check RAY_ADDRESS; the cluster needs `ray[default]`, and its dashboard",
        ) from error
    except OSError as error:
        raise TransientError(
            f"no Ray cluster answers at {address}",
            seen=_first_cause(error),
            valid="the address of a running Ray dashboard, http://host:8265",
            hint="check RAY_ADDRESS, or unset it to use the embedded Ray; `ray start --head` has "
            "a dashboard if `ray[default]` is installed, unless it is told not to",
        ) from error


def _unauthorized(address: str, error: Exception) -> InputError:
    return InputError(
        f"the Ray cluster at {address} does not let us in",
        seen=str(error).splitlines()[0].split(". ")[0],
        valid="the token that the cluster was started with",
        hint="set RAY_AUTH_TOKEN, or RAY_AUTH_TOKEN_PATH to a file with it; RAY_AUTH_MODE=disabled "
        "is for a cluster that asks for none",
    )


def _first_cause(error: BaseException) -> str:
    """Return what the operating system said, below the words of three libraries."""
    while error.__context__ is not None:
        error = error.__context__
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def _require_same(version: str, address: str) -> None:
    if version.split(".")[:2] != ray.__version__.split(".")[:2]:
        raise InputError(
            f"the cluster at {address} runs another Ray than this installation",
            seen=f"Ray {version}",
            valid=f"Ray {ray.__version__}",
            hint="install the same Ray, and the same Millrace's dependencies, on its nodes",
        )


def _job(details: JobDetails) -> RayJob:
    return RayJob(
        id=str(details.submission_id),
        status=str(details.status.value),
        started=int(details.start_time or 0),
        metadata=dict(details.metadata or {}),
        message=details.message or "",
        error_type=details.error_type or "",
        exit_code=details.driver_exit_code,
    )


def _quiet() -> None:
    """Leave out Ray's lines on what it packs and uploads."""
    for name in ("ray.dashboard.modules.dashboard_sdk", "ray._private.runtime_env.packaging"):
        logging.getLogger(name).setLevel(logging.WARNING)


ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("export", "flows", "models", "serving", "tasks")
PIPELINE = "pipeline.yaml"


def fill(folder: Path, pipeline_file: Path) -> None:
    """Copy the code, and a pipeline file as `PIPELINE`, into a folder.

    The modules beside the file stay where they are: what they made is in the registered version.

    Args:
        folder: that exists.
        pipeline_file: the YAML file.
    """
    for name in PACKAGES:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, folder / "millrace" / name, ignore=ignored)
    shutil.copyfile(pipeline_file, folder / PIPELINE)
