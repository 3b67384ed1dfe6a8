"""Outages of MLflow during a run: the trained model waits, and errors say where its weights are."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from millrace.models.common.errors import InputError, TransientError
from millrace.models.common.external_errors import explain_external_error
from millrace.models.common.installation import Installation
from millrace.models.registry.tracking import TrackedRun, check_reachable
from millrace.tasks.progress import log

WAIT_S, LOOK_S = 600.0, 5.0


def await_mlflow(tracking_uri: str, wait_s: float = WAIT_S) -> None:
    """Wait until MLflow answers, because a trained model can be registered nowhere else.

    Raises:
        TransientError: MLflow did not answer within `wait_s`.
    """
    deadline, has_waited = time.monotonic() + wait_s, False
    while True:
        try:
            check_reachable(tracking_uri)
        except TransientError as error:
            if time.monotonic() > deadline:
                raise
            if not has_waited:
                log.warning(
                    "%s: the trained model waits up to %.0f minutes for MLflow",
                    error.what,
                    wait_s / 60,
                )
            has_waited = True
            time.sleep(LOOK_S)
        else:
            if has_waited:
                log.warning("MLflow answers again; the run goes on")
            return


@contextmanager
def weights_named(installation: Installation, run: TrackedRun) -> Iterator[None]:
    """Add the folder of the trained weights to an error that the block raises.

    Other errors pass unchanged: an `InputError`, an error that `explain_external_error` does not
    explain, and an error before the first checkpoint.
    """
    try:
        yield
    except Exception as error:
        explained = explain_external_error(error)
        folder = installation.home / "training" / run.run_id
        if (
            explained is None
            or isinstance(explained, InputError)
            or not any(folder.glob("checkpoint_*"))
        ):
            raise
        hint = "" if explained.hint is None else f"{explained.hint}; "
        raise type(explained)(
            explained.what,
            seen=explained.seen,
            valid=explained.valid,
            hint=f"{hint}a new run trains again; the weights that this run trained are in {folder}",
        ) from error
