"""A queue for starts that need the whole machine: one process starts at a time.

The embedded Ray has 30 s to start. On two cores, four that start at once slow each other down until
none of them is ready in time.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from millrace.models.common.file_locks import try_lock
from millrace.models.common.slow_step import report_while

RETRY_SECONDS = 0.2


@contextmanager
def wait_turn(lock: Path, step: str) -> Iterator[None]:
    """Run the block when no other process is in such a block; a process that dies leaves it.

    Args:
        lock: the file that is locked, in a folder that exists; it is created and stays.
        step: what is done in the block, for the line that is logged while this process waits.
    """
    with lock.open("a") as file:
        if not try_lock(file):
            with report_while(f"{step} is waiting for its turn: another command does it now"):
                while not try_lock(file):
                    time.sleep(RETRY_SECONDS)
        yield  # closing the file releases the lock
