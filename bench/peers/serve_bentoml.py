"""The model in BentoML: `serve_bentoml.py MODEL PORT WAY`, which becomes `bentoml serve`.

`bentoml serve` imports this file again in each of its processes. It logs no requests, like Triton.
"""

import os
import sys
from pathlib import Path
from typing import Any

import bentoml  # type: ignore[import-not-found]
import numpy as np
import numpy.typing as npt
from one_thread import session  # type: ignore[import-not-found]

MODEL = "MILLRACE_BENCH_MODEL"
OPTIONS: dict[str, Any] = {"workers": 1, "logging": {"access": {"enabled": False}}}
SERVICES = {"one by one": "OneByOne", "one by one, in threads": "Threads", "batches": "Batches"}

Rows = npt.NDArray[np.float32]


@bentoml.service(**OPTIONS)
class OneByOne:
    """Answers each request in the loop that reads it."""

    def __init__(self) -> None:
        self.session = session(os.environ[MODEL])

    @bentoml.api  # type: ignore[untyped-decorator]
    async def predict(self, x: Rows) -> Rows:
        """Compute the rows of one request."""
        return self.session.run(None, {"x": x})[0]  # type: ignore[no-any-return]


@bentoml.service(**OPTIONS)
class Threads:
    """Answers each request in a thread, as BentoML does for a plain method."""

    def __init__(self) -> None:
        self.session = session(os.environ[MODEL])

    @bentoml.api  # type: ignore[untyped-decorator]
    def predict(self, x: Rows) -> Rows:
        """Compute the rows of one request."""
        return self.session.run(None, {"x": x})[0]  # type: ignore[no-any-return]


@bentoml.service(**OPTIONS)
class Batches:
    """Answers many requests at once, by BentoML's adaptive batching."""

    def __init__(self) -> None:
        self.session = session(os.environ[MODEL])

    @bentoml.api(batchable=True, max_batch_size=32)  # type: ignore[untyped-decorator]
    def predict(self, x: Rows) -> Rows:
        """Compute the rows of many requests."""
        return self.session.run(None, {"x": x})[0]  # type: ignore[no-any-return]


def main(model: str, port: str, way: str) -> None:
    """Become BentoML's server."""
    here = Path(__file__)
    argv = [sys.executable, "-m", "bentoml", "serve", f"{here.stem}:{SERVICES[way]}"]
    argv += ["--working-dir", str(here.parent), "--host", "127.0.0.1", "--port", port]
    os.execve(sys.executable, argv, os.environ | {MODEL: model})


if __name__ == "__main__":
    main(*sys.argv[1:])
