"""The `fork_server` of one job of Ray, whose programs have imported Ray as well.

`python -m millrace.models.ray.job_fork_server SOCKET MODULE…` is itself a fork of the server
that has everything but Ray. Ray reads the variables of a worker, with the id of its job, when it is
imported, so each job has a server of its own.

Forks must not draw the same ids. Ray's ids come from Abseil's generator, which a fork copies once
it was used, and two workers that send a third one tasks of the same id make it crash. A decorator
of Ray's actors draws one at each import, so here it gets it from the kernel. Whether forks still
draw the same is tried before the first one is served.
"""

import gc
import importlib
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from millrace.models.common.fork_server import ForkServer, end_with_parent, listen, run

PROBES = 2


class _KernelIds:
    """Ray's `ActorClassID`, with random ids from the kernel."""

    def __init__(self, original: Any) -> None:
        self._original = original

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)

    def from_random(self) -> Any:
        return self._original(os.urandom(self._original.size()))


@contextmanager
def ids_from_kernel() -> Iterator[None]:
    """Have Ray's decorator of actors draw its ids from the kernel while the block runs."""
    module: Any = importlib.import_module("ray.actor")
    original = module.ActorClassID
    module.ActorClassID = _KernelIds(original)
    try:
        yield
    finally:
        module.ActorClassID = original


def draw_in_forks() -> tuple[tuple[str, ...], ...]:
    """Return the ids that some forks of this process draw: in the main thread, and in another."""
    return tuple(_draw_in_fork() for _ in range(PROBES))


def _draw_in_fork() -> tuple[str, ...]:
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(writer, " ".join(_draw()).encode())
        os._exit(0)
    os.close(writer)
    with open(reader) as lines:
        drawn = lines.read().split()
    os.waitpid(pid, 0)
    return tuple(drawn)


def _draw() -> list[str]:
    from ray._raylet import ActorClassID

    drawn = [ActorClassID.from_random().hex()]
    thread = threading.Thread(target=lambda: drawn.append(ActorClassID.from_random().hex()))
    thread.start()
    thread.join()
    return drawn


def have_own_ids(drawn: Sequence[Sequence[str]]) -> bool:
    """Return whether all ids are different, and all forks drew some."""
    flat = [each for ids in drawn for each in ids]
    return all(drawn) and len(set(flat)) == len(flat)


def main() -> None:
    """Import the modules on the command line, and then fork for every client."""
    path, *modules = sys.argv[1:]
    end_with_parent()
    listener = listen(path)  # who comes now, waits for the imports
    with ids_from_kernel():
        for module in modules:
            importlib.import_module(module)
    if not have_own_ids(draw_in_forks()):
        sys.exit("forks would draw the same ids: the workers of this job import Ray themselves")
    gc.freeze()  # a child's garbage collection would copy all that is imported
    if (request := ForkServer(listener).serve()) is not None:
        run(request)


if __name__ == "__main__":
    main()
