"""The client of Ray's Jobs API, against a server that answers as a cluster, or as none."""

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import ray

from millrace.models.common.errors import InputError, TransientError, WorkError
from millrace.models.ray import jobs
from millrace.models.ray.jobs import RayJobs

JOB = {
    "type": "SUBMISSION",
    "submission_id": "a",
    "job_id": None,
    "driver_info": None,
    "status": "RUNNING",
    "entrypoint": "python",
    "message": None,
    "error_type": None,
    "start_time": 5,
    "end_time": None,
    "metadata": {"k": "v"},
    "runtime_env": {},
    "driver_agent_http_address": None,
    "driver_node_id": None,
    "driver_exit_code": None,
}
DRIVER = {**JOB, "type": "DRIVER", "submission_id": None, "job_id": "01000000"}
Answers = dict[str, tuple[int, str]]
"""Status and body by path."""


def version(number: str = ray.__version__) -> tuple[int, str]:
    return 200, json.dumps({"ray_version": number, "version": "4"})


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Answers], str]]:
    for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    started: list[ThreadingHTTPServer] = []

    def serve(answers: Answers) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:  # noqa: N802  (the library's name)
                status, body = answers.get(self.path, (404, "no such page"))
                self.send_response(status)
                self.end_headers()
                self.wfile.write(body.encode())

            do_POST = do_GET  # noqa: N815

            def log_message(self, *_: Any) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        started.append(server)
        return f"http://127.0.0.1:{server.server_port}"

    yield serve
    for server in started:
        server.shutdown()
        server.server_close()


def test_jobs_are_listed_without_the_drivers_that_nobody_submitted(cluster: Any) -> None:
    jobs = RayJobs(
        cluster({"/api/version": version(), "/api/jobs/": (200, json.dumps([JOB, DRIVER]))})
    )
    (job,) = jobs.all()
    assert (job.id, job.status, job.started, job.metadata) == ("a", "RUNNING", 5, {"k": "v"})
    assert job.is_alive


def test_a_job_that_the_cluster_does_not_know_is_none_and_needs_no_stop(cluster: Any) -> None:
    jobs = RayJobs(cluster({"/api/version": version()}))
    assert jobs.job("nobody") is None
    jobs.stop("nobody")


def test_a_log_is_read(cluster: Any) -> None:
    answers = {"/api/version": version(), "/api/jobs/a/logs": (200, '{"logs": "one\\n"}')}
    assert RayJobs(cluster(answers)).log("a") == "one\n"


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ((401, "Unauthorized: Missing authentication token"), "RAY_AUTH_TOKEN"),
        ((403, "Forbidden: Invalid authentication token"), "RAY_AUTH_TOKEN"),
        ((404, "not here"), "no Jobs API"),
        ((200, "<html>"), "no Jobs API"),
        ((200, '{"name": "another API"}'), "no Jobs API"),
        (version("2.40.0"), "another version of Ray"),
    ],
)
def test_a_wrong_setting_is_the_users_error(
    cluster: Any, answer: tuple[int, str], says: str
) -> None:
    with pytest.raises(InputError, match=says) as told:
        RayJobs(cluster({"/api/version": answer}))
    assert told.value.hint


def test_another_release_of_the_same_ray_will_do(cluster: Any) -> None:
    same = ".".join([*ray.__version__.split(".")[:2], "99"])
    RayJobs(cluster({"/api/version": version(same)}))


def test_an_address_that_nobody_answers_may_do_so_later() -> None:
    with pytest.raises(TransientError, match="RAY_ADDRESS") as told:
        RayJobs("http://127.0.0.1:9")
    assert "refused" in str(told.value.seen)


def test_an_answer_that_does_not_come_is_not_waited_for(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "TIMEOUT_S", 0.2)
    late = threading.Event()

    class Late(dict[str, Any]):
        def get(self, *_: Any) -> tuple[int, str]:
            late.wait(30)
            return version()

    with pytest.raises(TransientError, match="no Ray cluster answers"):
        RayJobs(cluster(Late()))
    late.set()


@pytest.mark.parametrize(("status", "kind"), [(500, TransientError), (400, WorkError)])
def test_a_refusal_is_told_by_its_last_line(
    cluster: Any, status: int, kind: type[WorkError]
) -> None:
    trace = "Traceback\n  ...\nRuntimeError: no agent"
    jobs = RayJobs(cluster({"/api/version": version(), "/api/jobs/a": (status, trace)}))
    with pytest.raises(kind, match="no agent") as told:
        jobs.job("a")
    assert type(told.value) is kind
