"""`millrace release --watch`: releases whenever something is due."""

import time
from collections.abc import Callable, Mapping

from millrace.flows.console import log
from millrace.flows.release_model import release_model
from millrace.flows.triggers.watch import RequestThrottle
from millrace.models.common.errors import MillraceError
from millrace.serving.release.outcome import Outcome


def watch_releases(
    interval: float,
    print_outcomes: Callable[[tuple[Outcome, ...]], None],
    find_due: Callable[[], Mapping[str, str]],
) -> None:
    """Check every `interval` seconds until Ctrl-C, and release when something is due.

    A failure of a server is logged, and the release retried after a minute or more. A fault of
    ours, which would only recur, ends the loop.

    Args:
        interval: seconds between two checks.
        print_outcomes: called with the outcomes of a release that changed something.
        find_due: returns the first action of a release, by model.
    """
    throttle = RequestThrottle()
    while True:
        try:
            models = throttle.select(find_due(), time.monotonic())
            if models:
                outcomes = release_model(asked_by="millrace release --watch", models=list(models))
                throttle.note_release(models)
                if any(outcome.changed for outcome in outcomes):
                    print_outcomes(outcomes)
        except Exception as error:
            if not is_server_failure(error):
                raise
            log.error("the release failed and will be retried: %s", error)
        time.sleep(interval)


def is_server_failure(error: BaseException | None) -> bool:
    """Return whether an error, or one that it was raised from, is a failure of a server.

    Those are Millrace's own errors, and what the clients of MLflow and Prefect raise while their
    server restarts; Prefect's client wraps some in a plain RuntimeError.
    """
    import httpx
    from mlflow.exceptions import MlflowException

    known = (MillraceError, MlflowException, httpx.HTTPError, OSError)
    return error is not None and (isinstance(error, known) or is_server_failure(error.__cause__))
