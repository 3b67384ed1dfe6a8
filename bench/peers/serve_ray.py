"""The model in Ray Serve: `serve_ray.py MODEL PORT WAY`.

With its own proxy, or in the high throughput mode of its documentation: HAProxy before the replica;
there one request at a time, or in batches by Ray Serve's dynamic request batching.
Its HTTP is on loopback. While it runs, Ray's own ports listen on every address and require a token,
and HAProxy's statistics page listens on every address too.
"""

import os
import signal
import socket
import sys
from typing import Any

import numpy as np
import numpy.typing as npt
import ray
from one_thread import session  # type: ignore[import-not-found]
from ray import serve
from starlette.requests import Request

HIGH_THROUGHPUT, IN_BATCHES = "high throughput", "batches"
SWITCH = "RAY_SERVE_ENABLE_HA_PROXY"
AT_A_TIME = 64


class Mlp:
    """Answers rows."""

    def __init__(self, model: str) -> None:
        self.session = session(model)

    async def __call__(self, request: Request) -> dict[str, Any]:
        """Compute the rows of one request."""
        x = np.asarray((await request.json())["x"], dtype=np.float32)
        return {"y": self.session.run(None, {"x": x})[0].tolist()}


class BatchedMlp:
    """Answers the rows of many requests at once."""

    def __init__(self, model: str) -> None:
        self.session = session(model)

    async def __call__(self, request: Request) -> dict[str, Any]:
        """Compute the rows of one request, together with those of others."""
        x = np.asarray((await request.json())["x"], dtype=np.float32)
        return {"y": await self.predict(x)}

    @serve.batch(max_batch_size=32, batch_wait_timeout_s=0.001)
    async def predict(self, requests: list[npt.NDArray[np.float32]]) -> list[list[list[float]]]:
        """Return the answers to requests of one row each."""
        answers = self.session.run(None, {"x": np.concatenate(requests)})[0]
        return [[answer.tolist()] for answer in answers]


def main(model: str, port: str, way: str) -> None:
    """Serve until this process is ended."""
    if HIGH_THROUGHPUT in way and SWITCH not in os.environ:
        # They are read when Ray Serve is imported.
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | _high_throughput())
    folder = os.environ["TMPDIR"]
    ray.init(include_dashboard=False, _node_ip_address="127.0.0.1", _temp_dir=folder)
    serve.start(http_options={"host": "127.0.0.1", "port": int(port)})
    deployed = serve.deployment(num_replicas=1, max_ongoing_requests=AT_A_TIME)
    serve.run(deployed(BatchedMlp if IN_BATCHES in way else Mlp).bind(model))
    signal.sigwait({signal.SIGTERM})


def _high_throughput() -> dict[str, str]:
    """Return the variables of that mode, with all of HAProxy's files in this server's home."""
    folder = os.path.join(os.environ["TMPDIR"], "haproxy")
    return {
        SWITCH: "1",
        "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
        "RAY_SERVE_HAPROXY_METRICS_ENABLED": "0",
        "RAY_SERVE_HAPROXY_STATS_PORT": _free_port(),
        "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": _free_port(),
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": os.path.join(folder, "haproxy.cfg"),
        "RAY_SERVE_HAPROXY_SOCKET_PATH": os.path.join(folder, "admin.sock"),
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": folder,
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": os.path.join(folder, "server-state"),
    }


def _free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


if __name__ == "__main__":
    main(*sys.argv[1:])
