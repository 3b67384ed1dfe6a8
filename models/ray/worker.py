"""The program that a `server` has Ray start as a worker: `python worker.py ARGUMENTS`.

Ray's workers inherit the environment and the folder of the process that started Ray. With the Ray
of `up` that is the supervisor, which may have started days ago. So this program takes the
environment and the current folder of the command that owns the job, and becomes Ray's own worker;
or it has a `fork_server` start Ray's worker, which has imported its libraries already: that of its
job, which has imported Ray too, or else that of its Ray.

Ray's `runtime_env` does the same for variables, but it shows them in the arguments of a process,
which every user of the machine can read, and starts one more Python for each worker.

It imports the standard library only, so that it takes milliseconds.
"""

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from millrace.models.common.fork_client import FORK_SERVER, fork
from millrace.models.common.low_priority import LOW_PRIORITY, lower_priority

WARM_RAY = "MILLRACE_RAY"
"""Contains the folder of this Ray; see `warm`."""
MARK = "MILLRACE_SUPERVISED"
"""The mark by which `down` finds the worker; see `millrace.flows.settings`."""
JOB = "RAY_JOB_ID"
RAYLET = "RAY_RAYLET_PID"
FROM_RAYLET = (JOB, RAYLET, MARK)
"""Variables that each worker keeps from the raylet."""
NOT_FOR_WORKERS = ("LD_PRELOAD",)
"""Variables that the raylet takes away from each worker."""


def job_file(folder: Path, job: str) -> Path:
    """Return the file with the environment of a job's command, in the folder of its Ray."""
    return folder / "jobs" / f"{job}.json"


def job_server(fork_server: str, job: str) -> str:
    """Return the socket of a job's own fork server.

    Args:
        fork_server: the socket of the one that it is forked from.
        job: the id of the job.
    """
    return f"{fork_server}-{job}"


def worker_environment(command: Mapping[str, str], inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a worker.

    Args:
        command: the environment of the command that owns the job.
        inherited: the environment that the raylet gave to this process.
    """
    kept = {name: inherited[name] for name in FROM_RAYLET if name in inherited}
    dropped = {name for name in NOT_FOR_WORKERS if name not in inherited}
    return {name: value for name, value in command.items() if name not in dropped} | kept


def find_ray_worker() -> str:
    """Return the path of Ray's own worker program, without importing Ray."""
    from importlib.util import find_spec

    spec = find_spec("ray")
    assert spec is not None
    assert spec.origin is not None
    return str(Path(spec.origin).with_name("_private") / "workers" / "default_worker.py")


def main() -> None:
    """Become the worker of the job in the variable RAY_JOB_ID."""
    job = json.loads(job_file(Path(os.environ[WARM_RAY]), os.environ[JOB]).read_text())
    os.chdir(job["folder"])
    environment = worker_environment(job["environment"], os.environ)
    worker, arguments, server = find_ray_worker(), sys.argv[1:], os.environ.get(FORK_SERVER)
    for each in (job_server(server, os.environ[JOB]), server) if server else ():
        if fork(each, worker, arguments, environment, waits=False):
            return
    if LOW_PRIORITY in environment:
        if os.fork():  # Ray's child leads a group, and may not leave its session
            return
        lower_priority()
    os.execve(sys.executable, [sys.executable, worker, *arguments], environment)  # noqa: S606


if __name__ == "__main__":
    main()
