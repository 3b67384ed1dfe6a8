"""MLflow goes away in the middle of a run: what was trained waits, and is not lost unsaid."""

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
    """Return when MLflow answers: a model was trained, and nowhere else can it be registered.

    Raises:
        TransientError: it did not in that time.
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
                    "%s: the trained model waits up to %.0f minutes for it", error.what, wait_s / 60
                )
            has_waited = True
            time.sleep(LOOK_S)
        else:
            if has_waited:
                log.warning("MLflow answers again; the run goes on")
            return


@contextmanager
def weights_named(installation: Installation, run: TrackedRun) -> Iterator[None]:
    """Say in what ends the block where the weights are, if any were trained, and how to go on."""
    try:
        yield
    except Exception as error:
        told = explain_external_error(error)
        folder = installation.home / "training" / run.run_id
        if told is None or isinstance(told, InputError) or not any(folder.glob("checkpoint_*")):
            raise
        hint = "" if told.hint is None else f"{told.hint}; "
        raise type(told)(
            told.what,
            seen=told.seen,
            valid=told.valid,
            hint=f"{hint}a run trains anew, and the weights that this one trained are in {folder}",
        ) from error
