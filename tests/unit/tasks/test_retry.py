import pytest
from prefect.states import Completed, Failed
from prefect.task_engine import TaskRunTimeoutError

from millrace.models.common.errors import InputError, TransientError, WorkError
from millrace.tasks.retry import may_pass, step


@pytest.mark.parametrize(
    ("fault", "again"),
    [
        (TransientError("MLflow is away"), True),
        (ConnectionResetError(), True),
        (TimeoutError(), True),
        (TaskRunTimeoutError("the step's own time was up"), False),
        (InputError("wrong column"), False),
        (WorkError("no variant could be made"), False),
        (ValueError("a bug"), False),
    ],
)
def test_only_a_fault_that_may_pass_is_tried_again(fault: Exception, again: bool) -> None:
    assert may_pass(None, None, Failed(data=fault)) is again


def test_what_succeeded_is_not_tried_again() -> None:
    assert may_pass(None, None, Completed(data=3)) is False


def test_a_step_asks_whether_its_fault_may_pass() -> None:
    made = step(timeout_seconds=5)(lambda: 3)
    assert made.retry_condition_fn is may_pass


@pytest.mark.parametrize(("retries", "delays"), [(0, []), (1, [2.0]), (2, [2.0, 10.0])])
def test_a_step_waits_longer_before_each_try(retries: int, delays: list[float]) -> None:
    made = step(timeout_seconds=5, retries=retries)(lambda: 3)
    assert (made.retries, made.retry_delay_seconds) == (retries, delays)


def test_a_step_is_a_plain_function_inside() -> None:
    assert step(timeout_seconds=5)(lambda rows: rows + 1).fn(2) == 3
