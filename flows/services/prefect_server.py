"""Prefect's server behind our guard: `python -m millrace.flows.services.prefect_server`.

It is what `prefect server start` runs in the foreground, with Prefect's application wrapped.
`create` is the factory for the temporary servers of commands.
"""

import argparse
import os
import signal
import threading
import time

from starlette.types import ASGIApp

from millrace.serving.origin_check import OriginCheck, OriginPolicy

COMMAND = "MILLRACE_COMMAND"
"""Names the process that a temporary server works for."""
LOOK_SECONDS = 0.5
END_SECONDS = 5.0
POLICY = OriginPolicy(
    open_paths=frozenset({"/api/health", "/api/ready"}),
    only_json=True,
    no_links=("/api",),
    websockets=True,
)
"""Prefect asks for its login on every path of its API but these two; a page could guess at it."""


def create() -> ASGIApp:
    """Return the guarded application of a temporary server, which ends with its command.

    Prefect ends it from the command's own exit handlers, which a signal skips.
    """
    command = os.environ.get(COMMAND, "")
    if command.isdecimal():
        watch = threading.Thread(target=_end_with, args=(int(command),), daemon=True)
        watch.start()
    from prefect.server.api.server import create_app

    return OriginCheck(create_app(), POLICY)


def _end_with(command: int) -> None:
    """End this process when its parent is no longer the command."""
    while os.getppid() == command:
        time.sleep(LOOK_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(END_SECONDS)
    os._exit(1)


def main() -> None:
    """Serve until SIGTERM."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", required=True, type=int)
    chosen = parser.parse_args()

    import uvicorn
    from prefect.server.api.server import create_app
    from prefect.settings import get_current_settings

    server = get_current_settings().server
    uvicorn.run(
        OriginCheck(create_app(final=True), POLICY),
        host=chosen.host,
        port=chosen.port,
        timeout_keep_alive=server.api.keepalive_timeout,
        ws_ping_interval=server.api.websocket_ping_interval,
        ws_ping_timeout=server.api.websocket_ping_timeout,
        log_level=server.logging_level.lower(),
    )


if __name__ == "__main__":
    main()
