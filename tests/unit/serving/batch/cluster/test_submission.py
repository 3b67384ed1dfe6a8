import shlex
from dataclasses import replace
from typing import Any

import pytest

from millrace.models.common.errors import InputError, MillraceError, TransientError, WorkError
from millrace.models.ray.jobs import RayJob
from millrace.serving.batch.cluster.cluster_job import (
    ORDER,
    JobRequest,
    Order,
    error_of,
    fault_of,
    find_running,
)

ASKED = Order("m", "digest of the file", "2026-01-05", "/rows", "s3://b/tables", "http://mlflow")


def job(id: str, status: str, started: int, digest: str = ASKED.digest) -> RayJob:
    return RayJob(id, status, started, {ORDER: digest})


def test_the_newest_job_that_is_alive_and_does_the_same_is_followed() -> None:
    jobs = [
        job("done", "SUCCEEDED", 9),
        job("older", "RUNNING", 1),
        job("newer", "PENDING", 2),
        job("another", "RUNNING", 3, "another digest"),
        RayJob("somebody's", "RUNNING", 4),
    ]
    found = find_running(jobs, ASKED.digest)
    assert found is not None
    assert found.id == "newer"


@pytest.mark.parametrize("status", ["SUCCEEDED", "FAILED", "STOPPED"])
def test_a_job_that_has_ended_is_not_followed(status: str) -> None:
    assert find_running([job("a", status, 1)], ASKED.digest) is None


@pytest.mark.parametrize(
    "change",
    [
        {"pipeline": "n"},
        {"file": "another"},
        {"date": "2026-01-06"},
        {"source": None},
        {"tables": "s3://other/tables"},
        {"registry": "http://other"},
    ],
)
def test_whatever_was_asked_for_is_part_of_the_digest(change: dict[str, Any]) -> None:
    assert replace(ASKED, **change).digest != ASKED.digest


def test_an_id_says_what_it_is_for_and_is_never_the_same() -> None:
    first, second = ASKED.new_id(), ASKED.new_id()
    assert first.startswith("millrace-m-2026-01-05-")
    assert first != second


def test_a_job_reads_what_it_was_told_from_its_command() -> None:
    request = JobRequest("id", "pipeline.yaml", "2026-01-05", "/it's $HOME; rm", {"a": 'b "c"'})
    *_, argument = shlex.split(request.entrypoint)
    assert JobRequest.read(argument) == request


@pytest.mark.parametrize("kind", [InputError, WorkError, TransientError, MillraceError])
def test_an_error_comes_back_as_it_was(kind: type[MillraceError]) -> None:
    error = kind("it failed", seen=3, valid="4", hint="try 4")
    back = error_of(error.as_dict())  # type: ignore[arg-type]
    assert type(back) is kind
    assert str(back) == str(error)


@pytest.mark.parametrize(
    ("ended", "kind"),
    [
        (RayJob("a", "FAILED", exit_code=1), WorkError),
        (RayJob("a", "FAILED", error_type="RUNTIME_ENV_SETUP_FAILURE"), WorkError),
        (RayJob("a", "STOPPED"), WorkError),
        (RayJob("a", "FAILED", exit_code=-9), TransientError),
        (RayJob("a", "FAILED", exit_code=137), TransientError),
        (RayJob("a", "FAILED", error_type="JOB_SUPERVISOR_ACTOR_DIED"), TransientError),
    ],
)
def test_what_killed_a_job_may_pass_and_what_it_did_itself_not(
    ended: RayJob, kind: type[WorkError]
) -> None:
    assert type(fault_of(ended, "")) is kind


def test_a_job_without_an_outcome_is_told_by_its_last_lines() -> None:
    log = "\n".join([*map(str, range(50)), "", "ModuleNotFoundError: no module named 'deltalake'"])
    fault = fault_of(RayJob("a", "FAILED", exit_code=1), log + "\n")
    assert "'deltalake'" in str(fault)
    assert "49" in str(fault)
    assert "40" not in str(fault)
