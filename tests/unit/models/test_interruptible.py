"""Ctrl-C while Ray Train runs, whose handler ends the process with 0 or does nothing."""

import os
import signal
import sys
from collections.abc import Callable
from types import FrameType

import pytest

from models.trainer import interruptible


def nothing(_signum: int, _frame: FrameType | None) -> None: ...


def end(_signum: int, _frame: FrameType | None) -> None:
    sys.exit(0)


def ctrl_c(handler: Callable[[int, FrameType | None], None]) -> None:
    signal.signal(signal.SIGINT, handler)
    os.kill(os.getpid(), signal.SIGINT)


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
