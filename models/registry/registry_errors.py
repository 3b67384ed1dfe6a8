"""The errors of MLflow's client, as a `MillraceError` with the next step."""

from collections.abc import Iterator
from contextlib import contextmanager

from millrace.models.common.errors import TransientError, WorkError

PASSING = ("INTERNAL_ERROR", "TEMPORARILY_UNAVAILABLE", "REQUEST_LIMIT_EXCEEDED")
MISSING = ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE")
"""MLflow's codes for something that is not there. Whoever asks for a version of a model that does
not exist gets the first; the second also says that a run is deleted."""


@contextmanager
def registry_errors(what: str = "") -> Iterator[None]:
    """Raise an error of MLflow as a `MillraceError`.

    Args:
        what: beginning of the message: what failed, and a colon.

    Raises:
        TransientError: MLflow says that it may pass.
        WorkError: MLflow failed.
    """
    from mlflow.exceptions import MlflowException

    try:
        yield
    except MlflowException as error:
        message = f"{what}MLflow's registry failed"
        seen = next(iter(str(error).splitlines()), type(error).__name__)
        code = error.error_code
        if code in PASSING:  # also from a server that shuts down: the version is not at fault
            hint = "check MLflow's log, and run the command again; the next release tries again too"
            raise TransientError(message, seen=f"{code}: {seen}", hint=hint) from error
        hint = "check MLflow's log, the permissions of the login, and MLFLOW_TRACKING_URI"
        raise WorkError(message, seen=f"{code}: {seen}", hint=hint) from error


@contextmanager
def unless_missing() -> Iterator[None]:
    """Leave the block without an error if MLflow does not have what the block asks for."""
    from mlflow.exceptions import MlflowException

    try:
        yield
    except MlflowException as error:
        if error.error_code not in MISSING:
            raise
