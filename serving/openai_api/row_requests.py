"""Answer rows by the names of their columns: `POST /v1/models/MODEL:predict`.

The form is that of TensorFlow Serving and Vertex AI: `{"instances": [{column: value, …}, …]}`, and
`{"predictions": […]}` with the model's version. A row that the model cannot answer is refused with
the words of batch inference, and with it the request.
"""

import asyncio
import json
import logging
import math
import re
import time
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

import grpc
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import Request
from starlette.responses import Response
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from millrace.models.common.errors import TransientError
from millrace.serving.openai_api.api_key import ApiKey
from millrace.serving.openai_api.connection import read_body, run_while_connected
from millrace.serving.openai_api.error_response import (
    SERVER,
    ApiError,
    overloaded,
    unavailable,
)
from millrace.serving.openai_api.model_catalog import ModelCatalog
from millrace.serving.openai_api.rate_limit import CHARACTERS, RateLimiter
from millrace.serving.openai_api.row_models import RowModel
from millrace.serving.triton.channel import UNLIMITED
from millrace.serving.triton.column_front import MOST_ROWS
from millrace.serving.triton.server_index import COLUMNS, UNHEALTHY

log = logging.getLogger("millrace.openai_api")

ANSWER_SECONDS = 60.0
MOST_NAME = 256
"""Characters of a model's name that are read."""
CONFIG_SECONDS = 5.0
REFUSED = re.compile(r"row \d+ |\d+ of \d+ rows cannot be answered")
"""How the front step begins what it says about the rows; other messages stay in the log."""
REPLACED = (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNAVAILABLE)
"""Status of a version that has just been replaced: the new one is asked."""
PAUSES = (0.05, 0.2, 0.5, 1.0, 1.5, None)
"""Seconds after a try that such a version did not answer; None: it was the last."""

Authenticate = Callable[[Mapping[str, str]], ApiKey]


class RowRequest(BaseModel):
    """The body of a request."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    instances: Annotated[list[dict[str, Any]], Field(min_length=1, max_length=MOST_ROWS)]
    scores: Literal["all"] | Annotated[int, Field(ge=1)] | None = None

    def most(self, model: RowModel) -> int:
        """Return the number of classes whose probabilities are wanted for each row."""
        if self.scores is None:
            return 0
        return len(model.labels) if self.scores == "all" else min(self.scores, len(model.labels))


class RowHandler:
    """Answers rows; created and used in one event loop.

    Args:
        catalog: lists what Triton serves.
        endpoint: the address of Triton's gRPC.
        authenticate: returns the key of a request, or refuses it.
        rate_limiter: the limits of the keys; four characters of a body are a token, and so is each
            probability of `scores`.
        max_body_bytes: the largest body of a request.
    """

    def __init__(
        self,
        catalog: ModelCatalog,
        endpoint: str,
        authenticate: Authenticate,
        rate_limiter: RateLimiter,
        max_body_bytes: int,
    ) -> None:
        self._catalog, self._authenticate = catalog, authenticate
        self._rate_limiter, self._max_body_bytes = rate_limiter, max_body_bytes
        self._channel = grpc.aio.insecure_channel(endpoint, UNLIMITED)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        self._models: dict[str, RowModel] = {}

    async def close(self) -> None:
        """Close the connection to Triton."""
        await self._channel.close()

    async def predict(self, request: Request) -> Response:
        """Answer the rows of a request.

        Raises:
            ApiError: the request is refused, or failed.
            ClientGone: the client disconnected.
        """
        key = self._authenticate(request.headers)
        self._rate_limiter.check(key, 1)
        body = await read_body(request, self._max_body_bytes)
        asked = read_rows(body)
        name, request_id = request.path_params["model"][:MOST_NAME], request.state.request_id
        began, outcome = time.monotonic(), "left"
        try:
            model = await self._model(name)
            tokens = math.ceil(len(body) / CHARACTERS) + len(asked.instances) * asked.most(model)
            self._rate_limiter.check(key, tokens)
            self._rate_limiter.bucket(key).take(tokens, time.monotonic())
            work = self._answer(name, asked, request_id)
            answer = await run_while_connected(request.receive, work)
            outcome = "done"
        except ApiError as error:
            outcome = str(error.code or error.status)
            raise
        finally:
            log.info(
                "%s %s key %s, model %r: %d rows, %.3f s",
                *(request_id, outcome, key.name, name, len(asked.instances)),
                time.monotonic() - began,
            )
        return Response(answer, media_type="application/json")

    async def list_models(self) -> list[RowModel]:
        """Return the models that answer rows now.

        Raises:
            ApiError: Triton does not answer.
        """
        return [await self._model(name) for name in sorted(await self._versions("Triton"))]

    async def _answer(self, name: str, asked: RowRequest, request_id: str) -> bytes:
        for pause in PAUSES:
            model = await self._model(name, fresh=pause != PAUSES[0])
            try:
                message = model.request([*asked.instances], request_id)
                answer = await self._stub.ModelInfer(message, timeout=ANSWER_SECONDS)
            except grpc.aio.AioRpcError as error:
                if pause is not None and error.code() in REPLACED:
                    await asyncio.sleep(pause)
                    continue
                raise _translated(error, name) from error
            # in a thread: a million numbers would hold up the other requests for a second
            return await asyncio.to_thread(_as_json, model, answer, asked.most(model))
        raise AssertionError("the last try answers or raises")

    async def _versions(self, name: str, *, fresh: bool = False) -> Mapping[str, int]:
        try:
            return await self._catalog.list_fronts(fresh=fresh)
        except TransientError as error:
            log.warning("%s", " ".join(str(error).split()))
            raise unavailable(name) from error

    async def _model(self, name: str, *, fresh: bool = False) -> RowModel:
        """Return the live version of a model, with its columns.

        Raises:
            ApiError: no such model answers rows, or Triton does not answer.
        """
        versions = await self._versions(name, fresh=fresh)
        if name not in versions and not fresh:  # it may just have been loaded
            versions = await self._versions(name, fresh=True)
        version = versions.get(name)
        if version is None:
            if await self._catalog.is_unavailable(name + COLUMNS):
                raise unavailable(name)
            raise unknown_row_model(name, versions)
        self._models = {each: model for each, model in self._models.items() if each in versions}
        known = self._models.get(name)
        if known is None or known.version != version or fresh:
            try:
                asked = pb.ModelConfigRequest(name=name + COLUMNS, version=str(version))
                answer = await self._stub.ModelConfig(asked, timeout=CONFIG_SECONDS)
            except grpc.aio.AioRpcError as error:
                raise _translated(error, name) from error
            known = self._models[name] = RowModel.of(answer.config, version)
        return known


def _as_json(model: RowModel, answer: pb.ModelInferResponse, scores: int) -> bytes:
    predictions = model.predictions(answer, scores)
    found = {"model": model.name, "model_version": model.version, "predictions": predictions}
    return json.dumps(found, ensure_ascii=False).encode(errors="backslashreplace")


def read_rows(body: bytes) -> RowRequest:
    """Read the body of a request.

    Raises:
        ApiError: it is not JSON, or not a request for rows.
    """
    try:
        return RowRequest.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"][:2]))
        message = f"{place}: {first['msg']}" if place else first["msg"]
        example = '{"instances": [{"COLUMN": VALUE, …}, …]}'
        raise ApiError(
            400,
            f"{message}. Send {example}, at most {MOST_ROWS} rows.",
            param=str(first["loc"][0]) if first["loc"] else None,
            code="invalid_value",
        ) from error


def unknown_row_model(name: str, known: Mapping[str, int]) -> ApiError:
    """Return the error for a name that no model has which answers rows."""
    names = ", ".join(sorted(known)) or "none; promote a version of a model with columns"
    message = f"No model {name!r} answers rows. Those that do: {names}."
    return ApiError(404, message, param="model", code="model_not_found")


def _translated(error: grpc.aio.AioRpcError, name: str) -> ApiError:
    """Return the error for the client; what may hold paths or names of hosts is only logged."""
    code, details = error.code(), error.details() or ""
    if code is grpc.StatusCode.INVALID_ARGUMENT and REFUSED.match(details):
        return ApiError(400, details, param="instances", code="invalid_rows")
    log.warning("%s: %s %s", name, code.name, " ".join(details.split()))
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return overloaded(f"{name} is overloaded.")
    if code in (*REPLACED, grpc.StatusCode.DEADLINE_EXCEEDED) or UNHEALTHY in details:
        return unavailable(name)
    return ApiError(500, f"{name} failed to answer this request.", type=SERVER)
