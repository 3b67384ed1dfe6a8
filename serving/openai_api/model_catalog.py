"""Which language models Triton serves now, and which models answer rows, cached for a second.

Triton's repository index requires the token for changes to Triton, and this server does not have
that token. Triton's statistics require no token, and they too name every version that is ready.
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
from millrace.serving.triton.server_index import COLUMNS, TRIAL, is_helper_model

FRESH_SECONDS = 1.0
CALL_SECONDS = 5.0
NOT_READY = ("no available versions", "not at ready state")
"""Triton's error messages for a known model without a ready version."""


@dataclass(frozen=True)
class ServedModel:
    """A language model that answers requests.

    Attributes:
        name: the model's name.
        version: the version that answers.
        since: when this process first saw the version, in whole seconds since the epoch.
    """

    name: str
    version: int
    since: int


ServedModels = Mapping[str, ServedModel]
"""The language models that answer requests, by name."""


class ModelCatalog:
    """Lists the language models of one Triton server; created and used in one event loop.

    Args:
        endpoint: the Triton server.
        clock: returns monotonic seconds.
        wall: returns seconds since the epoch.
    """

    def __init__(
        self, endpoint: Endpoint, clock: Callable[[], float], wall: Callable[[], float]
    ) -> None:
        self._clock, self._wall = clock, wall
        self._channel = grpc.aio.insecure_channel(endpoint.grpc)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        self._fetching = asyncio.Lock()
        self._fetched_at = float("-inf")
        self._models: ServedModels = {}
        self._fronts: Mapping[str, int] = {}
        self._is_language: dict[tuple[str, int], bool | None] = {}

    async def close(self) -> None:
        """Close the connection."""
        await self._channel.close()

    async def list_models(self, *, fresh: bool = False) -> ServedModels:
        """Return the language models that Triton serves, from a cache at most a second old.

        Args:
            fresh: ask Triton even if the cache is current.

        Raises:
            TransientError: the server does not answer.
        """
        begun = self._clock()
        async with self._fetching:
            # a caller that waited for the lock uses the result that was fetched meanwhile
            oldest = begun if fresh else begun - FRESH_SECONDS
            if self._fetched_at < oldest:
                now = self._clock()
                self._models = await self._fetch_models()
                self._fetched_at = now
        return self._models

    async def list_fronts(self, *, fresh: bool = False) -> Mapping[str, int]:
        """Return the live version of each model that answers rows by the names of their columns.

        Args:
            fresh: ask Triton even if the cache is current.

        Raises:
            TransientError: the server does not answer.
        """
        await self.list_models(fresh=fresh)
        return self._fronts

    async def is_unavailable(self, name: str) -> bool:
        """Whether Triton knows a model of this name but none of its versions is ready."""
        try:
            request = pb.ModelConfigRequest(name=name)
            await self._stub.ModelConfig(request, timeout=CALL_SECONDS)
        except grpc.RpcError as error:
            return any(words in (error.details() or "") for words in NOT_READY)
        return False

    async def _fetch_models(self) -> ServedModels:
        try:
            request = pb.ModelStatisticsRequest()
            answer = await self._stub.ModelStatistics(request, timeout=CALL_SECONDS)
        except grpc.RpcError as error:
            raise TransientError(
                "Triton did not list its models",
                seen=error.details(),
                hint="start Triton: millrace up",
            ) from error
        ready = [(each.name, int(each.version)) for each in answer.model_stats]
        self._fronts = select_fronts(ready)
        live = select_live_versions(ready)
        self._is_language = {each: await self._check_language(*each) for each in live.items()}
        return {n: self._served_model(n, v) for n, v in live.items() if self._is_language[n, v]}

    def _served_model(self, name: str, version: int) -> ServedModel:
        before = self._models.get(name)
        if before is not None and before.version == version:
            return before
        return ServedModel(name, version, int(self._wall()))

    async def _check_language(self, name: str, version: int) -> bool | None:
        """Return whether a version is a language model; None if Triton no longer has it."""
        known = self._is_language.get((name, version))
        if known is not None:
            return known
        request = pb.ModelConfigRequest(name=name, version=str(version))
        try:
            answer = await self._stub.ModelConfig(request, timeout=CALL_SECONDS)
        except grpc.RpcError:
            return None
        return is_language_model(answer.config)


def is_language_model(config: Any) -> bool:
    """Whether a model streams, and has `text_input` and `text_output` as Triton's vLLM backend."""
    inputs = {each.name for each in config.input}
    outputs = {each.name for each in config.output}
    streams = config.model_transaction_policy.decoupled
    return streams and "text_input" in inputs and "text_output" in outputs


def select_live_versions(ready: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Return the live version of each model, which is its highest ready version.

    Args:
        ready: the name and version of every ready version, helper models included.
    """
    return {name: version for name, version in sorted(ready) if not is_helper_model(name)}


def select_fronts(ready: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Return the live version of each model that answers rows by the names of their columns.

    Args:
        ready: the name and version of every ready version, helper models included.
    """
    return {
        name.removesuffix(COLUMNS): version
        for name, version in sorted(ready)
        if name.endswith(COLUMNS) and TRIAL not in name
    }
