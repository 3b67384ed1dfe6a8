"""`millrace release`, once or for good."""

import time
from collections.abc import Callable, Mapping

from millrace.flows.release_model import release_model
from millrace.flows.triggers.watch import RequestThrottle
from millrace.models.common.errors import MillraceError
from millrace.serving.release.outcome import Outcome
from millrace.tasks.progress import log


def release_once() -> tuple[Outcome, ...]:
    """Reconcile once, and try again what was refused: a person asks for it."""
    return release_model(asked_by="millrace release", again=True)


def watch_releases(
    interval: float,
    show: Callable[[tuple[Outcome, ...]], None],
    due: Callable[[], Mapping[str, str]],
) -> None:
    """Look every `interval` seconds until Ctrl-C, and release where something is due.

    A failure is told, and tried again after a minute or more. A fault of ours, which would only
    come back, ends it.

    Args:
        interval: seconds between two looks.
        show: takes what a release changed.
        due: returns what a release would begin with, by model.
    """
    throttle = RequestThrottle()
    while True:
        try:
            wanted = throttle.select(due(), time.monotonic())
            outcomes = (
                release_model(asked_by="millrace release --watch", models=list(wanted))
                if wanted
                else ()
            )
            throttle.note_release(wanted)
            if any(outcome.changed for outcome in outcomes):
                show(outcomes)
        except Exception as error:
            if not is_failure(error):
                raise
            log.error("the release failed and is tried again: %s", error)
        time.sleep(interval)


def is_failure(error: BaseException | None) -> bool:
    """Return whether an error, or one that it was raised from, is a failure of what a release uses.

    Those are what Millrace tells itself, and what the clients of MLflow and Prefect raise while
    their server restarts; Prefect's wraps some in a plain RuntimeError.
    """
    import httpx
    from mlflow.exceptions import MlflowException

    known = (MillraceError, MlflowException, httpx.HTTPError, OSError)
    return error is not None and (isinstance(error, known) or is_failure(error.__cause__))
