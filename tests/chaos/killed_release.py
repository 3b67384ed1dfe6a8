"""Releases that kill themselves, as hard as can be, each at one moment.

    python -m tests.chaos.killed_release HOME HTTP GRPC METRICS TOKEN

Each line of stdin is a moment: the number of actions after which a release dies, or a function of
`MOMENTS` before which. This process imports everything once and forks for each release; the exit
code of each is a line of stdout.
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any

# So that no fork imports it: a release does when it opens its registry.
import mlflow.store.model_registry.sqlalchemy_store
import mlflow.store.tracking.sqlalchemy_store  # noqa: F401

from millrace.models.common.installation import Endpoint, Installation
from millrace.serving.release import apply as module
from millrace.serving.release import trial
from millrace.serving.triton.client import TritonClient
from millrace.tasks.release import MlflowRegistry
from tests.integration.asked import Line

MOMENTS = {
    "in the trial": (trial, "_probe"),
    "before the load": (TritonClient, "load"),
    "before it is told": (MlflowRegistry, "report"),
}


def die(*_: object, **__: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def dying_after(actions: int) -> Any:
    done = iter(range(1, 100))
    carry_out = vars(module.ModelRelease)["_run"]

    def do(self: Any, action: Any) -> None:
        carry_out.__get__(self, type(self))(action)
        if next(done) == actions:
            die()

    return do


def release(installation: Installation, endpoint: Endpoint, moment: str) -> None:
    """Release until the moment."""
    if moment in MOMENTS:
        owner, name = MOMENTS[moment]
        setattr(owner, name, die)
    else:
        module.ModelRelease._run = dying_after(int(moment))
    with TritonClient(endpoint) as client:
        Line(installation, client).release()
    sys.exit("it was to die, and did not")


def main() -> None:
    home, http, grpc, metrics, token = sys.argv[1:]
    endpoint = Endpoint("127.0.0.1", int(http), int(grpc), int(metrics), token=token)
    installation = Installation(
        Path(home), f"sqlite:///{home}/mlflow.db", f"{home}/tables", triton=(endpoint,)
    )
    for moment in sys.stdin:
        child = os.fork()
        if child == 0:
            release(installation, endpoint, moment.strip())
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(code, flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
