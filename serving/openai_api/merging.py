"""Several streams as one, in the order in which their items come."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Generic, TypeVar

Item = TypeVar("Item")
AHEAD = 16
"""Items that are taken before somebody wants them."""


@dataclass(frozen=True)
class _End:
    """The end of a stream: by an error, or as it should."""

    error: Exception | None = None


@dataclass(frozen=True)
class _Got(Generic[Item]):
    """An item of a stream."""

    item: Item


async def merged(streams: Sequence[AsyncGenerator[Item, None]]) -> AsyncGenerator[Item, None]:
    """Yield the items of all streams; the first error ends all.

    Args:
        streams: closed in the end, however it comes.
    """
    queue: asyncio.Queue[_Got[Item] | _End] = asyncio.Queue(AHEAD)
    tasks = [asyncio.create_task(_pump(stream, queue)) for stream in streams]
    try:
        open_streams = len(tasks)
        while open_streams:
            match await queue.get():
                case _Got(item):
                    yield item
                case _End(error=Exception() as error):
                    raise error
                case _End():
                    open_streams -= 1
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _pump(
    stream: AsyncGenerator[Item, None], queue: "asyncio.Queue[_Got[Item] | _End]"
) -> None:
    try:
        async with aclosing(stream):
            async for item in stream:
                await queue.put(_Got(item))
    except Exception as error:  # it is raised where the items are taken
        await queue.put(_End(error))
    else:
        await queue.put(_End())
