"""Run the OpenAI-compatible server: `python -m millrace.serving.openai_api --home .millrace`."""

import argparse
import logging
from collections.abc import Sequence
from pathlib import Path

import uvicorn

from millrace.models.common.installation import Endpoint
from millrace.serving.openai_api.api_key import KEYS_FILE
from millrace.serving.openai_api.app import create_app
from millrace.serving.openai_api.request_handler import ServerSettings

LOOPBACK = "127.0.0.1"
PORT = 8020
HEADER_BYTES = 16 * 2**10
SHUTDOWN_SECONDS = 5
"""For the answers in flight when the server stops."""


def serve(settings: ServerSettings, *, host: str = LOOPBACK, port: int = PORT) -> None:
    """Serve until SIGTERM.

    Args:
        settings: of the server.
        host: the address to bind; without TLS, so put a proxy before any that is not loopback.
        port: the port to bind.
    """
    uvicorn.run(
        create_app(settings),
        host=host,
        port=port,
        log_level="warning",
        access_log=False,
        server_header=False,
        h11_max_incomplete_event_size=HEADER_BYTES,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve with the command line's options."""
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
    settings = ServerSettings(endpoint, options.home / KEYS_FILE, loopback_port=own_port)
    serve(settings, host=options.host, port=options.port)


if __name__ == "__main__":
    main()
