"""Retries of steps: only after an error that may be transient, never after a user's mistake."""

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from prefect import Task
from prefect.cache_policies import NO_CACHE
from prefect.task_engine import TaskRunTimeoutError
from prefect.utilities.annotations import opaque

from millrace.models.common.errors import MillraceError, SilentError

P = ParamSpec("P")
R = TypeVar("R")


def may_pass(_task: object, _run: object, state: Any) -> bool:
    """Return whether the failure of a task run is worth another try.

    A step that timed out is not tried again, because it may have done its work and would do it
    twice. A step that waited for a service that does not answer is not tried again either, because
    a command must end within half a minute of such an error.
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
        # Prefect passes on any exception; all others are not known to be transient.
        return False
    return False


class _Step(Task[P, R]):
    """A task that is called with values, in which Prefect looks for no results of other tasks.

    Prefect would visit every value of every collection in them, to find what it must wait for. A
    result that is an argument itself is found, so the run's page shows what follows on what.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the step."""
        call: Any = super().__call__
        return call(*map(opaque, args), **{name: opaque(value) for name, value in kwargs.items()})


def step(timeout_seconds: float, retries: int = 2) -> Callable[[Callable[P, R]], Task[P, R]]:
    """Make a Prefect task of a plain function.

    Prefect does not cache results, because a step itself detects that it can be skipped (a snapshot
    that did not change, a version that is already live).

    Args:
        timeout_seconds: time after which the step fails, without a retry.
        retries: number of retries after a transient error.
    """

    def make(function: Callable[P, R]) -> Task[P, R]:
        return _Step(
            function,
            retries=retries,
            retry_delay_seconds=[2.0, 10.0][:retries],
            retry_condition_fn=may_pass,
            timeout_seconds=timeout_seconds,
            cache_policy=NO_CACHE,
            persist_result=False,
        )

    return make
