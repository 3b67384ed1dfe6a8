"""A version on a Triton of its own, to which requests are sent when they are due."""

import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from secrets import token_hex

import numpy as np
import psutil
from numpy.typing import NDArray

from millrace.models.common.arrays import Array
from millrace.models.common.errors import TransientError
from millrace.models.common.installation import Endpoint, Installation
from millrace.models.common.own_folder import own_folder
from millrace.models.config.serving_spec import ServingSpec
from millrace.serving.guard.arrivals_table import RecordedArrivals, read_arrivals
from millrace.serving.profile.record import Configuration as Settings
from millrace.serving.profile.workload import Configuration
from millrace.serving.triton import server
from millrace.serving.triton.client import TritonClient
from millrace.serving.triton.model_config import latest, loaded_anew
from millrace.serving.triton.open_loop import OpenLoop, SentLoad, encode_request
from millrace.serving.triton.repository import Repository
from millrace.serving.triton.request_trace import TRACE_ENVIRONMENT, trace_flags
from millrace.serving.triton.version_config import config_of
from millrace.serving.triton.version_folder import Artifact

MODEL = "profiled"
VERSION = 1
WARM_UP = 50
STOP_SECONDS = 1.0
"""Its Triton may be killed: all requests are answered, and its folder is removed."""
STUB = "triton_python"
"""How the names of the processes begin that compute models of Python-based backends."""
DIFFERENT_REQUESTS = 64
"""How many requests of a size are made before a run; more would need memory and show no more."""
GUARD_SECONDS, POLL_SECONDS = 10.0, 0.1
"""How long the guard's record of requests is waited for, and how often it is looked at."""


@dataclass
class OwnTriton:
    """A version on a Triton that nothing else uses.

    Attributes:
        installation: where it is.
        client: the server.
        endpoint: its address.
        repository: its models.
        artifact: the version.
    """

    installation: Installation
    client: TritonClient
    endpoint: Endpoint
    repository: Repository
    artifact: Artifact

    def serve(self, configuration: Configuration) -> None:
        """Serve the version with a configuration, and with the rest of its own settings."""
        settings = Settings(settings=configuration.settings)
        self.load(settings.apply(self.artifact.serving))

    def load(self, serving: ServingSpec) -> None:
        """Serve the version with these settings.

        Raises:
            WorkError: Triton refuses them.
        """
        artifact = replace(self.artifact, serving=serving)
        config = config_of(MODEL, artifact, version_policy=latest(), parameters=loaded_anew())
        self.repository.write_config(config, artifact.labels)
        self.client.load(MODEL)


@contextmanager
def own_triton(artifact: Artifact, trace: Path | None = None) -> Iterator[OwnTriton]:
    """Run a Triton of its own with a version, which `load` has still to load.

    Args:
        artifact: the version.
        trace: a file to which Triton writes the times of each request; None for no trace.

    Raises:
        TransientError: it ended meanwhile.
    """
    with ExitStack() as stack:
        left = server.remove_shared_memory  # of a killed profile
        home = stack.enter_context(own_folder("millrace-profile-", also_remove=left))
        installation = Installation(home, "", "").prepared()
        repository = Repository(installation.model_repository, installation.staging)
        repository.stage(MODEL, VERSION, artifact)
        endpoint = _free_endpoint()
        running = server.running(
            *(installation, endpoint),
            flags=trace_flags(trace) if trace else (),
            environment=TRACE_ENVIRONMENT if trace else {},
            ends_with_parent=True,
            stop_seconds=STOP_SECONDS,
        )
        client = stack.enter_context(running)
        try:
            artifact = repository.artifact(MODEL, VERSION)
            yield OwnTriton(installation, client, endpoint, repository, artifact)
        except TransientError as error:
            raise TransientError(
                "the Triton that the profile started does not answer any more",
                seen=error.seen or error.what,
                hint="run the command again: measured batches are used again",
            ) from error


@dataclass
class ProfiledModel:
    """A version that answers at once, and requests for it.

    Attributes:
        triton: serves it.
        rows: rows to send, by input.
        loop: sends requests.
        sent: what was sent, with the rows of each request.
    """

    triton: OwnTriton
    rows: Mapping[str, Array]
    loop: OpenLoop
    sent: list[tuple[SentLoad, NDArray[np.int64]]] = field(default_factory=list)
    _requests: dict[int, list[bytes]] = field(default_factory=dict)

    def serve(self, configuration: Configuration) -> None:
        """Serve a configuration, and send some requests before others are measured."""
        self.triton.serve(configuration)
        for _ in range(WARM_UP):
            self.send(np.zeros(1), np.ones(1, np.int64))

    def send(self, due: NDArray[np.float64], rows: NDArray[np.int64], **looks: object) -> SentLoad:
        """Send requests of so many rows when they are due; see `OpenLoop.send`."""
        encoded = [self._request(int(each), number) for number, each in enumerate(rows)]
        load = self.loop.send(due, encoded, **looks)  # type: ignore[arg-type]
        self.sent.append((load, rows[: len(load.due)]))
        return load

    def at_guard(self, many: int) -> RecordedArrivals:
        """Return what the guard recorded, as soon as it has so many requests.

        It writes them within about a second. After some seconds it is what there is.
        """
        until = time.monotonic() + GUARD_SECONDS
        while True:
            found = read_arrivals(self.triton.installation, (MODEL,), 0.0, time.time())
            if len(found.times) >= many or time.monotonic() > until:
                return found
            time.sleep(POLL_SECONDS)

    def backend_memory(self) -> int:
        """Return the bytes that the processes which compute the model share with nobody."""
        total, home = 0, str(self.triton.installation.home)
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):
                is_own = any(home in word for word in process.cmdline())
                if is_own and process.name().startswith(STUB):
                    total += process.memory_full_info().uss
        return total

    def _request(self, rows: int, number: int) -> bytes:
        if rows not in self._requests:
            many = len(next(iter(self.rows.values())))
            places = np.arange(rows)[None] + np.arange(min(many, DIFFERENT_REQUESTS))[:, None]
            self._requests[rows] = [
                encode_request(MODEL, {k: v[each % many] for k, v in self.rows.items()})
                for each in places
            ]
        return self._requests[rows][number % len(self._requests[rows])]


@contextmanager
def profiled_model(
    artifact: Artifact, rows: Mapping[str, Array], trace: Path | None = None
) -> Iterator[ProfiledModel]:
    """Run a Triton of its own with a version that answers at once, which is still to be loaded.

    Args:
        artifact: the version.
        rows: rows to send, by input.
        trace: a file to which Triton writes the times of each request; None for no trace.
    """
    with own_triton(artifact, trace) as triton, OpenLoop(triton.endpoint) as loop:
        yield ProfiledModel(triton, rows, loop)


def _free_endpoint() -> Endpoint:
    """Return an address with ports that nothing uses now, and a token: it is open to other users.

    Without the token they could load a model with code of theirs.
    """
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(3)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        ports = (each.getsockname()[1] for each in sockets)
        return Endpoint("127.0.0.1", *ports, token=token_hex(32))
