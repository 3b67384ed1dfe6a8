"""Work that threads do ahead of its use, with results in order and few of them in memory."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def read_ahead(items: Iterator[T]) -> Iterator[T]:
    """Yield items; a thread makes the next one meanwhile."""
    end = object()
    take = partial(next, items, end)
    with ThreadPoolExecutor(1, thread_name_prefix="read-ahead") as thread:
        coming = thread.submit(take)
        while (item := coming.result()) is not end:
            coming = thread.submit(take)
            yield item


def map_ahead(function: Callable[[T], R], items: Iterable[T], threads: int) -> Iterator[R]:
    """Yield `function(item)` for each item in order; threads work on the next ones meanwhile.

    The items are made in the caller's thread, at most one more than there are threads.
    """
    waiting: deque[Future[R]] = deque()
    with ThreadPoolExecutor(threads, thread_name_prefix="map-ahead") as pool:
        for item in items:
            waiting.append(pool.submit(function, item))
            del item
            if len(waiting) > threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
