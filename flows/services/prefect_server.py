"""The Prefect server of `millrace up`, with Millrace's origin check.

`python -m millrace.flows.services.prefect_server` runs what `prefect server start` runs in the
foreground, with the origin check around Prefect's application.
"""

from datetime import timedelta
from functools import partial
from typing import Any

from millrace.flows.services.prefect_database import prepare_database
from millrace.flows.settings import LOOPBACK, load
from millrace.serving.origin_check import OriginCheck, OriginPolicy

POLL = timedelta(seconds=2)
POLICY = OriginPolicy(
    open_paths=frozenset({"/api/health", "/api/ready"}),
    only_json=True,
    no_links=("/api",),
    websockets=True,
)
"""Prefect's API requires its login except on the two open paths. The origin check refuses web pages
of other origins, because a web page could guess the login."""


def poll_rarely() -> None:
    """Have the worker of Prefect's background tasks look for work every two seconds.

    By default it looks every 100 ms for tasks, every 250 ms for tasks that are due and every 100 ms
    for tasks to cancel, which takes 2 % of a core for ever. Nothing that a user waits for is such a
    task, and Prefect cancels none.
    """
    from prefect.server.api import background_workers

    module: Any = background_workers

    class Worker(module.Worker):  # type: ignore[misc]
        async def _cancellation_listener(self) -> None:
            session = self._processing_session
            session.cancellation_ready.set()
            await session.stopping.wait()

    polls_rarely = {"minimum_check_interval": POLL, "scheduling_resolution": POLL}
    module.Worker = partial(Worker, **polls_rarely)


def main() -> None:
    """Serve until SIGTERM."""
    from prefect.server.api.server import create_app
    from prefect.settings import get_current_settings

    from millrace.serving.http_server import run_server

    prepare_database()
    poll_rarely()
    server = get_current_settings().server
    run_server(
        OriginCheck(create_app(final=True), POLICY),
        host=LOOPBACK,
        port=load().prefect_port,
        timeout_keep_alive=server.api.keepalive_timeout,
        ws_ping_interval=server.api.websocket_ping_interval,
        ws_ping_timeout=server.api.websocket_ping_timeout,
        log_level=server.logging_level.lower(),
    )


if __name__ == "__main__":
    main()
