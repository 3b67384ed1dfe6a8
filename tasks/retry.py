"""How a step is tried again: only where the fault may pass, and never on the user's mistake."""

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from prefect import Task, task
from prefect.cache_policies import NO_CACHE
from prefect.task_engine import TaskRunTimeoutError

from millrace.models.common.errors import MillraceError, SilentError

P = ParamSpec("P")
R = TypeVar("R")


def may_pass(_task: object, _run: object, state: Any) -> bool:
    """Return whether the failure of a task run is worth another try.

    A step whose own time was up is not: it may have done its work, and would do it twice. Nor is
    one that waited for a silent service: a command ends within half a minute of such a fault.
    """
    try:
        state.result()
    except MillraceError as error:
        return error.transient and not isinstance(error, SilentError)
    except TaskRunTimeoutError:
        return False
    except (ConnectionError, TimeoutError):
        return True
    except Exception:
        # Prefect hands over whatever was raised; anything else is not known to be transient.
        return False
    return False


def step(timeout_seconds: float, retries: int = 2) -> Callable[[Callable[P, R]], Task[P, R]]:
    """Make a Prefect task of a plain function.

    Results are not cached by Prefect: a step that can be skipped knows so itself (a snapshot that
    did not change, a version that is already live).

    Args:
        timeout_seconds: after which the step is failed, and not tried again.
        retries: further tries after a transient fault.
    """
    return task(
        retries=retries,
        retry_delay_seconds=[2.0, 10.0][:retries],
        retry_condition_fn=may_pass,
        timeout_seconds=timeout_seconds,
        cache_policy=NO_CACHE,
        persist_result=False,
    )
