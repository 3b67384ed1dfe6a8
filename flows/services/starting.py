"""A service that `millrace up` has only just started is waited for.

The record of `up` is there before its services answer. So a command that began before `up`, and
looks where MLflow is when it first needs it, is told an address at which nothing listens yet.
"""

import logging
import time
from collections.abc import Callable
from pathlib import Path

from millrace.flows import run_state
from millrace.models.common.errors import SilentError, TransientError

log = logging.getLogger("millrace")

START_SECONDS, LOOK_SECONDS = 60.0, 0.5


def once_started(run: Path, address: str, look: Callable[[], None]) -> None:
    """Look for a service, and again while it is one that `up` is starting.

    Args:
        run: folder of what runs for the home.
        address: where the service is.
        look: raises a `TransientError` if it does not answer.

    Raises:
        TransientError: it does not answer, and is not of an `up` that began a minute ago or less.
    """
    has_waited = False
    while True:
        try:
            return look()
        except SilentError:  # it was waited for
            raise
        except TransientError as error:
            if not _is_starting(run, address):
                raise
            if not has_waited:
                log.info("%s; `millrace up` is starting it, so it is waited for", error.what)
            has_waited = True
        time.sleep(LOOK_SECONDS)


def _is_starting(run: Path, address: str) -> bool:
    record = run_state.live(run)
    if record is None or time.time() - record.started_at > START_SECONDS:
        return False
    return any(address in (each.address, f"{each.address}/api") for each in record.services)
