"""Ctrl-C while Ray starts, and while Ray Train runs, whose handler ends with 0 or does nothing."""

import os
import signal
import sys
from collections.abc import Callable
from types import FrameType

import pytest

from millrace.models.common.interrupts import interruptible, uninterrupted


def nothing(_signum: int, _frame: FrameType | None) -> None: ...


def end(_signum: int, _frame: FrameType | None) -> None:
    sys.exit(0)


def ctrl_c(handler: Callable[[int, FrameType | None], None]) -> None:
    signal.signal(signal.SIGINT, handler)
    os.kill(os.getpid(), signal.SIGINT)


def sigterm(handler: Callable[[int, FrameType | None], None]) -> None:
    signal.signal(signal.SIGINT, handler)
    os.kill(os.getpid(), signal.SIGTERM)


def ctrl_c_of_a_group() -> None:
    ctrl_c(nothing)
    raise RuntimeError  # for the workers had it too


@pytest.mark.parametrize("handler", [nothing, end, signal.default_int_handler])
def test_ctrl_c_ends_the_block_whatever_its_handler_makes_of_it(
    handler: Callable[[int, FrameType | None], None],
) -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), interruptible():
        ctrl_c(handler)
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("handler", [nothing, end, signal.default_int_handler])
def test_a_sigterm_ends_the_block_and_then_its_own_handler_runs(
    handler: Callable[[int, FrameType | None], None],
) -> None:
    class Terminated(BaseException):
        pass

    def terminate(_signum: int, _frame: FrameType | None) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        with pytest.raises(Terminated), interruptible():
            sigterm(handler)
        assert signal.getsignal(signal.SIGTERM) is terminate
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_fault_of_workers_that_had_the_ctrl_c_too_is_none() -> None:
    with pytest.raises(KeyboardInterrupt), interruptible():
        ctrl_c_of_a_group()


def test_without_ctrl_c_the_block_is_as_it_was() -> None:
    with interruptible():
        signal.signal(signal.SIGINT, nothing)
    with pytest.raises(RuntimeError), interruptible():
        raise RuntimeError
    assert signal.getsignal(signal.SIGINT) is not nothing
    assert signal.set_wakeup_fd(-1) == -1


def test_what_is_not_to_be_interrupted_comes_to_its_end_first() -> None:
    done = []

    def two_steps() -> None:
        ctrl_c(signal.getsignal(signal.SIGINT))  # type: ignore[arg-type]
        done.append("both")

    with pytest.raises(KeyboardInterrupt), uninterrupted():
        two_steps()
    assert done == ["both"]
    with uninterrupted():
        done.append("more")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_ctrl_c_that_is_ignored_stays_so() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with uninterrupted():
            os.kill(os.getpid(), signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_second_ctrl_c_does_not_wait() -> None:
    done = []

    def hanging() -> None:
        for _ in range(2):
            ctrl_c(signal.getsignal(signal.SIGINT))  # type: ignore[arg-type]
        done.append("never")

    with pytest.raises(KeyboardInterrupt), uninterrupted():
        hanging()
    assert done == []
