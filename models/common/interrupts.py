"""Handling of Ctrl-C and SIGTERM while Ray occupies the main thread."""

import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise KeyboardInterrupt for a Ctrl-C, at the end of the block at the latest.

    Ray Train installs a SIGINT handler: it stops the workers in order, calls `sys.exit(0)`, and
    stays installed. If the run has just ended, the handler does nothing at all.

    A SIGTERM ends the block in the same way, and is then left to the handler that was there before.
    Ray waits in C, and drops what such a handler raises meanwhile.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    terminated: list[int] = []

    def terminate(signum: int, _frame: FrameType | None) -> None:
        terminated.append(signum)
        signal.raise_signal(signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    before_term = signal.signal(signal.SIGTERM, terminate)
    writer, reader = socket.socketpair()
    writer.setblocking(False)
    reader.setblocking(False)
    fd = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    try:
        yield
    except SystemExit as error:
        raise KeyboardInterrupt from error
    finally:
        signal.set_wakeup_fd(fd)
        signal.signal(signal.SIGINT, before)
        signal.signal(signal.SIGTERM, before_term or signal.SIG_DFL)
        with writer, reader, suppress(BlockingIOError):
            if terminated:
                signal.raise_signal(signal.SIGTERM)
            if signal.SIGINT in reader.recv(4096):
                raise KeyboardInterrupt


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Delay a Ctrl-C until the end of the block; raise a second one at once.

    The block starts Ray: a process that exits while its Ray is starting crashes.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        yield
        return
    held: list[int] = []

    def hold(signum: int, _frame: FrameType | None) -> None:
        if held:
            raise KeyboardInterrupt
        held.append(signum)

    before = signal.signal(signal.SIGINT, hold)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if held:
            raise KeyboardInterrupt
