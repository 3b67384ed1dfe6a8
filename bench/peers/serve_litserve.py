"""The model in LitServe: `serve_litserve.py MODEL PORT WAY`.

In batches or one request at a time, with either of its queues: its documentation recommends the
fast one above some hundred requests per second.
"""

import sys
from typing import Any

import litserve  # type: ignore[import-not-found]
import numpy as np
import numpy.typing as npt
from one_thread import session  # type: ignore[import-not-found]

BATCHES = {"max_batch_size": 32, "batch_timeout": 0.001}


class Mlp(litserve.LitAPI):  # type: ignore[misc]
    """Answers rows; `predict` gets one row, or a batch if batching is on."""

    def __init__(self, model: str, **batching: float) -> None:
        super().__init__(**batching)
        self.model = model

    def setup(self, device: str) -> None:
        """Open the session, in the worker's process."""
        self.session = session(self.model)

    def decode_request(self, request: dict[str, Any]) -> npt.NDArray[np.float32]:
        """Return the row of a request."""
        return np.asarray(request["x"][0], dtype=np.float32)

    def predict(self, x: npt.NDArray[np.float32]) -> Any:
        """Compute a row, or a batch of rows."""
        return self.session.run(None, {"x": np.atleast_2d(x)})[0]

    def encode_response(self, output: npt.NDArray[np.float32]) -> dict[str, Any]:
        """Return the JSON of an answer."""
        return {"y": output.ravel().tolist()}


def main(model: str, port: str, way: str) -> None:
    """Serve until this process is ended."""
    api = Mlp(model, **BATCHES if "batches" in way else {})
    server = litserve.LitServer(
        api, accelerator="cpu", workers_per_device=1, fast_queue="fast queue" in way
    )
    server.run(host="127.0.0.1", port=int(port), log_level="warning", generate_client_file=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
