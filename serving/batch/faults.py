"""What Ray Data raises, as errors of ours."""

from models.errors import MillraceError, WorkError


def fault_of(error: Exception) -> MillraceError:
    """Return what ended a job of Ray Data as an error of ours."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, MillraceError):
        return cause
    if isinstance(error, MillraceError):
        return error
    if cause is not None:  # after the first line Ray adds advice about its own settings
        seen = f"{type(cause).__name__}: {str(cause).strip().splitlines()[0]}"
    else:
        seen = [line for line in str(error).splitlines() if line[:1].strip()][-1]
    return WorkError(
        "batch inference failed; nothing was committed",
        seen=seen,
        hint="mend the cause and run it again",
    )
