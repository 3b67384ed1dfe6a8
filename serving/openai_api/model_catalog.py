"""Which language models Triton serves now, asked again when what is known is old.

The repository's index would tell, but it is for those who may change what is served; the
statistics are for everybody, and name every version that is ready.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import grpc
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from millrace.models.common.errors import TransientError
from millrace.models.common.installation import Endpoint
from millrace.serving.triton.names import is_made_here

FRESH_SECONDS = 1.0
CALL_SECONDS = 5.0
NOT_READY = ("no available versions", "not at ready state")
"""Triton's words of a model that it had, or is about to have."""


@dataclass(frozen=True)
class Served:
    """A language model that answers.

    Attributes:
        name: the model.
        version: that answers.
        since: whole seconds since the epoch, at which this process first saw the version.
    """

    name: str
    version: int
    since: int


Listing = Mapping[str, Served]
"""The language models that answer, by name."""


class Catalog:
    """Asks one server; made and used in one event loop.

    Args:
        endpoint: the server.
        clock: seconds that only grow.
        wall: seconds since the epoch.
    """

    def __init__(
        self, endpoint: Endpoint, clock: Callable[[], float], wall: Callable[[], float]
    ) -> None:
        self._endpoint, self._clock, self._wall = endpoint, clock, wall
        self._channel = grpc.aio.insecure_channel(endpoint.grpc)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        self._asking = asyncio.Lock()
        self._asked_at = float("-inf")
        self._listing: Listing = {}
        self._kinds: dict[tuple[str, int], bool | None] = {}

    async def close(self) -> None:
        """Close the connection."""
        await self._channel.close()

    async def listing(self, *, fresh: bool = False) -> Listing:
        """Return what there is, as of a second ago at most.

        Args:
            fresh: as of now.

        Raises:
            TransientError: the server does not answer.
        """
        begun = self._clock()
        async with self._asking:
            # whoever waited for the lock takes what was asked meanwhile
            oldest = begun if fresh else begun - FRESH_SECONDS
            if self._asked_at < oldest:
                now = self._clock()
                self._listing = await self._ask()
                self._asked_at = now
        return self._listing

    async def is_away(self, name: str) -> bool:
        """Tell whether Triton knows a model of this name of which no version is ready."""
        try:
            request = pb.ModelConfigRequest(name=name)
            await self._stub.ModelConfig(request, timeout=CALL_SECONDS)
        except grpc.RpcError as error:
            return any(words in (error.details() or "") for words in NOT_READY)
        return False

    async def _ask(self) -> Listing:
        try:
            request = pb.ModelStatisticsRequest()
            answer = await self._stub.ModelStatistics(request, timeout=CALL_SECONDS)
        except grpc.RpcError as error:
            raise TransientError(
                "the models cannot be listed", seen=error.details(), hint="start: millrace up"
            ) from error
        live = live_versions((each.name, int(each.version)) for each in answer.model_stats)
        self._kinds = {each: await self._is_language(*each) for each in live.items()}
        return {n: self._served(n, v) for n, v in live.items() if self._kinds[n, v]}

    def _served(self, name: str, version: int) -> Served:
        before = self._listing.get(name)
        if before is not None and before.version == version:
            return before
        return Served(name, version, int(self._wall()))

    async def _is_language(self, name: str, version: int) -> bool | None:
        """Tell whether it is one; None if the version has gone meanwhile."""
        known = self._kinds.get((name, version))
        if known is not None:
            return known
        request = pb.ModelConfigRequest(name=name, version=str(version))
        try:
            answer = await self._stub.ModelConfig(request, timeout=CALL_SECONDS)
        except grpc.RpcError:
            return None
        return is_language(answer.config)


def is_language(config: Any) -> bool:
    """Tell whether a model takes a text and streams one, as Triton's vLLM backend does."""
    inputs = {each.name for each in config.input}
    outputs = {each.name for each in config.output}
    streams = config.model_transaction_policy.decoupled
    return streams and "text_input" in inputs and "text_output" in outputs


def live_versions(ready: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Return the version of each model that answers: the highest that is ready.

    Args:
        ready: names and versions.
    """
    return {name: version for name, version in sorted(ready) if not is_made_here(name)}
