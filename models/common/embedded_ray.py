"""The Ray of one command, which starts in the background and ends with the command.

A thread starts it, so the command can do other work meanwhile. The thread lives as long as this Ray
does: the kernel ends Ray's processes when the thread that started them ends.
"""

from concurrent.futures import Future
from contextlib import suppress
from importlib import import_module
from threading import Event, Thread
from typing import TYPE_CHECKING

import psutil

from millrace.models.common.errors import TransientError
from millrace.models.common.ray_folder import ray_folder, ray_logs
from millrace.models.common.slow_step import report_while
from millrace.models.common.start_queue import wait_turn
from millrace.models.common.warm_ray import default_cpus

if TYPE_CHECKING:
    from millrace.models.common.ray_head import HeadNode

STARTS = 3
"""How often it is started: its first process has 30 s, too little on a busy machine."""
START_LOCK = "start.lock"


class EmbeddedRay:
    """A Ray that is started once.

    Args:
        processes: number of workers or actors, each of which reserves one CPU.
    """

    def __init__(self, processes: int) -> None:
        self._cpus = default_cpus(processes)
        self._address: Future[str] = Future()
        self._is_over = Event()
        self._thread: Thread | None = None

    def begin(self) -> None:
        """Begin to start it, unless it was begun."""
        if self._thread is None:
            import_module("millrace.models.common.ray_head")  # an import is not for a thread
            self._thread = Thread(target=self._keep, name="embedded-ray", daemon=True)
            self._thread.start()

    def address(self) -> str:
        """Return the address of its GCS, when it is started.

        Raises:
            TransientError: it did not start.
        """
        self.begin()
        with report_while("starting Ray"):
            return self._address.result()

    def close(self) -> None:
        """End its processes."""
        self._is_over.set()
        if self._thread is not None:
            self._thread.join()

    def _keep(self) -> None:
        try:
            node = self._start()
        except BaseException as error:  # noqa: BLE001  (raised again by `address`)
            self._address.set_exception(error)
            return
        self._address.set_result(str(node.gcs_address))
        self._is_over.wait()
        node.kill_all_processes(check_alive=False, allow_graceful=True)

    def _start(self) -> "HeadNode":
        from millrace.models.common.ray_head import start_head

        # Commands of one user that start at once start their Rays one after the other.
        with wait_turn(ray_folder().with_name(START_LOCK), "the start of Ray"):
            for left in reversed(range(STARTS)):
                before = set(_child_processes())
                try:
                    return start_head(self._cpus)
                except Exception as error:  # Ray raises Exception itself if it starts too slowly
                    _end_failed_start(before)
                    if not left:
                        raise TransientError(
                            "the embedded Ray did not start",
                            seen=next(iter(str(error).splitlines()), type(error).__name__),
                            hint=f"try again; see {ray_logs()}",
                        ) from error
        raise AssertionError("the last failure was raised")


def _end_failed_start(before: set[psutil.Process]) -> None:
    """End the processes of a failed start; Ray ends them only when the thread ends."""
    for process in set(_child_processes()) - before:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def _child_processes() -> list[psutil.Process]:
    """Return Ray's processes among the children of this process."""
    children = []
    for process in psutil.Process().children():
        with suppress(psutil.Error):
            if any("/ray/" in word for word in process.cmdline()):
                children.append(process)
    return children
