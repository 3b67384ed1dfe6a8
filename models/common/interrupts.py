"""Ctrl-C while Ray has the main thread."""

import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType


@contextmanager
def interruptible() -> Iterator[None]:
    """Make Ctrl-C a KeyboardInterrupt again, at the end of the block at the latest.

    Ray Train takes SIGINT, stops the workers in order, calls `sys.exit(0)`, and leaves its handler
    behind. Of a run that has just come to its end the handler does nothing at all.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    told, heard = socket.socketpair()
    told.setblocking(False)
    heard.setblocking(False)
    fd = signal.set_wakeup_fd(told.fileno(), warn_on_full_buffer=False)
    try:
        yield
    except SystemExit as error:
        raise KeyboardInterrupt from error
    finally:
        signal.set_wakeup_fd(fd)
        signal.signal(signal.SIGINT, before)
        with told, heard, suppress(BlockingIOError):
            if signal.SIGINT in heard.recv(4096):
                raise KeyboardInterrupt


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Keep a Ctrl-C until the block has come to its end; a second one does not wait.

    A Ray that has begun to start and is not up ends the process with a fault when that exits.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        yield
        return
    seen: list[int] = []

    def keep(signum: int, _frame: FrameType | None) -> None:
        if seen:
            raise KeyboardInterrupt
        seen.append(signum)

    before = signal.signal(signal.SIGINT, keep)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if seen:
            raise KeyboardInterrupt
