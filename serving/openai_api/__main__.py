"""Run the door in the foreground: `python -m millrace.serving.openai_api --home .millrace`."""

import argparse
import logging
from collections.abc import Sequence
from pathlib import Path

import uvicorn

from millrace.models.common.installation import Endpoint
from millrace.serving.openai_api.api_key_file import FILE
from millrace.serving.openai_api.app import app_of
from millrace.serving.openai_api.server import DoorSettings

LOOPBACK = "127.0.0.1"
PORT = 8020
HEADER_BYTES = 16 * 2**10
LAST_SECONDS = 5
"""In which answers may end when the door closes."""


def serve(settings: DoorSettings, *, host: str = LOOPBACK, port: int = PORT) -> None:
    """Answer until SIGTERM.

    Args:
        settings: how the door stands.
        host: where it listens; there is no TLS, so anything but loopback wants a proxy before it.
        port: its port.
    """
    uvicorn.run(
        app_of(settings),
        host=host,
        port=port,
        log_level="warning",
        access_log=False,
        server_header=False,
        h11_max_incomplete_event_size=HEADER_BYTES,
        timeout_graceful_shutdown=LAST_SECONDS,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve what the options name."""
    parser = argparse.ArgumentParser(
        prog="python -m millrace.serving.openai_api", description=__doc__
    )
    parser.add_argument("--home", type=Path, required=True, help="MILLRACE_HOME: holds the keys")
    parser.add_argument("--host", default=LOOPBACK)
    parser.add_argument("--port", type=int, default=PORT)
    parser.add_argument("--triton-host", default=LOOPBACK)
    parser.add_argument("--triton-grpc-port", type=int, default=8001)
    options = parser.parse_args(arguments)
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    log = logging.getLogger("millrace")
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    endpoint = Endpoint(options.triton_host, grpc_port=options.triton_grpc_port)
    own_port = options.port if options.host == LOOPBACK else None
    settings = DoorSettings(endpoint, options.home / FILE, loopback_port=own_port)
    serve(settings, host=options.host, port=options.port)


if __name__ == "__main__":
    main()
