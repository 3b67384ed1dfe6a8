"""`millrace release`, once or for good."""

import time
from collections.abc import Callable

from flows.release_model import release_model
from models.errors import MillraceError
from serving.reconcile import Outcome
from tasks.progress import log


def release_once() -> tuple[Outcome, ...]:
    """Reconcile once."""
    return release_model()


def watch_releases(interval: float, show: Callable[[tuple[Outcome, ...]], None]) -> None:
    """Reconcile every `interval` seconds until Ctrl-C; a failure is told and tried again."""
    while True:
        try:
            outcomes = release_model()
            if any(outcome.changed for outcome in outcomes):
                show(outcomes)
        except MillraceError as error:
            log.error("%s", error)
        time.sleep(interval)
