"""Runs an ASGI application in uvicorn, with less to do while nobody asks."""

import asyncio
import socket
import sys
from contextlib import suppress
from typing import Any

import uvicorn

TICK_SECONDS = 0.5
"""The longest time from SIGTERM until the server begins to stop.

uvicorn's own is 0.1 s, which takes 0.3 % of a core in each of four servers.
"""
TICKS_PER_SECOND = 10
"""uvicorn counts ticks of 0.1 s, and renews the header `Date` at every tenth."""


class IdleServer(uvicorn.Server):
    """A uvicorn server that looks every `TICK_SECONDS` whether it must stop."""

    async def main_loop(self) -> None:
        """Serve until the server must stop."""
        ticks = 0
        while not await self.on_tick(ticks):
            ticks += round(TICK_SECONDS * TICKS_PER_SECOND)
            await asyncio.sleep(TICK_SECONDS)


def run_server(app: Any, sockets: list[socket.socket] | None = None, **options: Any) -> None:
    """Serve until SIGTERM or Ctrl-C, and finish the requests in flight.

    After Ctrl-C it returns. SIGTERM then ends the process, as if there were no server.

    Args:
        app: the ASGI application.
        sockets: bound sockets to serve on, instead of a host and a port in `options`.
        options: the options of `uvicorn.Config`.

    Raises:
        SystemExit: the application or its port did not start.
    """
    server = IdleServer(uvicorn.Config(app, **options))
    with suppress(KeyboardInterrupt):  # uvicorn sends the signal again once it has stopped
        server.run(sockets)
    if not server.started:
        sys.exit(3)
