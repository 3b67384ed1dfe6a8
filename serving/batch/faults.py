"""What Ray Data raises, as errors of ours."""

from millrace.models.common.errors import MillraceError, WorkError
from millrace.models.common.ray_folder import ray_logs


def fault_of(error: Exception) -> MillraceError:
    """Return what ended a job of Ray Data as an error of ours, and let go of the job's actors."""
    _forget_frames(error)
    cause = getattr(error, "cause", None)
    if isinstance(cause, MillraceError):
        return cause
    if isinstance(error, MillraceError):
        return error
    if cause is not None:  # after the first line Ray adds advice about its own settings
        lines = str(cause).strip().splitlines()
        seen = ": ".join([type(cause).__name__, *lines[:1]])
    else:
        lines = [line for line in str(error).splitlines() if line[:1].strip()]
        seen = lines[-1] if lines else type(error).__name__
    return WorkError(
        "batch inference failed; nothing was committed",
        seen=seen,
        hint=f"mend the cause and run it again; what the actors printed is in {ray_logs()}",
    )


def _forget_frames(error: BaseException) -> None:
    """Take from an error, and from those behind it, where they were raised.

    Ray Data only drops the actors of a job that failed: they end when nothing refers to them. Of
    its own frames some do, and whoever keeps the error to try again, or to go on with another
    date, would keep these, and the GPUs and CPUs that the next job then waits for.
    """
    seen: set[int] = set()
    behind: list[BaseException | None] = [error]
    while behind:
        each = behind.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            each.__traceback__ = None
            behind += [each.__cause__, each.__context__]
