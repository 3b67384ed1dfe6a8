"""What Ray Data raises, as errors of ours."""

import gc
import weakref
from typing import Any

import pytest

from millrace.models.common.errors import InputError, MillraceError, WorkError
from millrace.serving.batch.actor import fault_of


class FromTask(Exception):
    """Ray's way to hand over what was raised in a task."""

    def __init__(self, cause: Exception) -> None:
        super().__init__("a long traceback")
        self.cause = cause


class Held:
    """Like an actor: gone when nothing refers to it."""


def test_an_error_of_ours_comes_through() -> None:
    ours = InputError("the input is wrong")
    assert fault_of(FromTask(ours)) is ours
    assert fault_of(ours) is ours


@pytest.mark.parametrize(
    ("error", "seen"),
    [
        (FromTask(ValueError("no such thing\nadvice")), "ValueError: no such thing"),
        (FromTask(StopIteration()), "StopIteration"),
        (RuntimeError("a traceback\n  of lines\nRuntimeError: it broke"), "RuntimeError: it broke"),
        (StopIteration(), "StopIteration"),
    ],
)
def test_another_error_is_told_in_a_line(error: Exception, seen: str) -> None:
    fault = fault_of(error)
    assert isinstance(fault, WorkError)
    assert fault.seen == seen


@pytest.mark.parametrize("kept", [FromTask(WorkError("it broke")), RuntimeError("it broke")])
def test_an_error_that_is_kept_holds_nothing_of_the_job(kept: Exception) -> None:
    found: list[Any] = []
    fault = _of_a_job(kept, found)
    gc.collect()
    assert str(fault).startswith(("it broke", "batch inference failed"))
    assert [held() for held in found] == [None, None]


def _of_a_job(error: Exception, found: list[Any]) -> MillraceError:
    """Fail as Ray Data does: while one error is handled that began in a frame of its own."""

    def step() -> None:
        actor = Held()
        found.append(weakref.ref(actor))
        try:
            read()
        except StopIteration:
            raise error from ValueError("of its own")

    def read() -> None:
        actor = Held()
        found.append(weakref.ref(actor))
        raise StopIteration

    try:
        step()
    except Exception as raised:
        try:
            raise fault_of(raised) from raised
        except MillraceError as fault:
            return fault
    raise AssertionError
