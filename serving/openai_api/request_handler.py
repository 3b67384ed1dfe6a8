"""Authenticate requests, pass them to Triton, and answer in OpenAI's format."""

import json
import logging
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from millrace.models.common.errors import MillraceError, TransientError
from millrace.models.common.installation import Endpoint
from millrace.serving.openai_api.api_key import ApiKey, KeyFile, find_owner
from millrace.serving.openai_api.connection import EventStream, read_body, run_while_connected
from millrace.serving.openai_api.error_response import (
    ApiError,
    is_unknown_model,
    translate_error,
    unavailable,
    unknown_model,
)
from millrace.serving.openai_api.model_catalog import ModelCatalog, ServedModel
from millrace.serving.openai_api.rate_limit import RateLimiter
from millrace.serving.openai_api.reply import (
    PromptPiece,
    Reply,
    Usage,
    fingerprint,
    is_cut_off,
    merge_streams,
)
from millrace.serving.openai_api.request_body import TextRequest, read_chat, read_completion
from millrace.serving.triton.streams.stream_client import ANSWER_SECONDS, AsyncStreamClient
from millrace.serving.triton.streams.stream_request import Piece

log = logging.getLogger("millrace.openai_api")

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": \n\n"
"""A comment of the event stream: keeps the connection open, and detects a disconnected client."""


@dataclass(frozen=True)
class ServerSettings:
    """Settings of the OpenAI-compatible server.

    Attributes:
        triton: the Triton server that runs the models.
        keys: the file of the API keys.
        deadline: the time limit of a whole answer, in seconds.
        max_body_bytes: the largest body of a request.
        max_requests: the largest number of requests in flight.
        loopback_port: the server's port if it listens on loopback only; None behind a proxy.
    """

    triton: Endpoint
    keys: Path
    deadline: float = ANSWER_SECONDS
    max_body_bytes: int = 2 * 2**20
    max_requests: int = 1024
    loopback_port: int | None = None


class RequestHandler:
    """Answers requests; created and used in one event loop.

    Args:
        settings: the server's settings.
        catalog: the list of the language models that Triton serves.
        rate_limiter: the token limits of the keys.
    """

    def __init__(
        self, settings: ServerSettings, catalog: ModelCatalog, rate_limiter: RateLimiter
    ) -> None:
        self._settings, self._catalog, self._rate_limiter = settings, catalog, rate_limiter
        self._client = AsyncStreamClient(settings.triton)
        self._key_file = KeyFile(settings.keys, time.monotonic)
        self._keys: tuple[ApiKey, ...] = ()

    async def close(self) -> None:
        """Close the connection to Triton, and end the streams."""
        await self._client.close()

    async def list_models(self, request: Request) -> Response:
        """Answer with the list of the language models that Triton serves now."""
        self.authenticate(request.headers)
        try:
            models = await self._catalog.list_models()
        except TransientError as error:
            raise _log_server_error(error, unavailable("the model server")) from error
        data = [_model_json(model) for _, model in sorted(models.items())]
        return JSONResponse({"object": "list", "data": data})

    async def describe_model(self, request: Request) -> Response:
        """Answer with the description of one language model."""
        self.authenticate(request.headers)
        return JSONResponse(_model_json(await self._find_model(request.path_params["model"])))

    async def complete(self, request: Request) -> Response:
        """Answer a completion; see `_generate`."""
        return await self._generate(request, read_completion)

    async def chat(self, request: Request) -> Response:
        """Answer a chat completion; see `_generate`."""
        return await self._generate(request, read_chat)

    async def _generate(
        self, request: Request, read_request: Callable[[bytes], TextRequest]
    ) -> Response:
        """Answer a request for text.

        Args:
            request: the request, whose body has not been read yet.
            read_request: parses the body.

        Raises:
            ApiError: the request is refused, or failed.
            ClientGone: the client disconnected.
        """
        key = self.authenticate(request.headers)
        self._rate_limiter.check(key, 1)
        text_request = read_request(await read_body(request, self._settings.max_body_bytes))
        request_id = request.state.request_id
        prefix = "chatcmpl" if text_request.is_chat else "cmpl"
        reply = Reply(text_request, f"{prefix}-{secrets.token_hex(16)}", int(time.time()))
        if text_request.stream:
            return EventStream(self._stream_events(reply, key, request_id))
        response = self._build_response(reply, key, request_id)
        return JSONResponse(await run_while_connected(request.receive, response))

    async def _build_response(
        self, reply: Reply, key: ApiKey, request_id: str
    ) -> Mapping[str, Any]:
        usage = Usage()
        async with aclosing(self._generate_all(reply.request, key, usage, request_id)) as stream:
            pieces = [piece async for piece in stream]
        return reply.build_response(pieces, usage)

    async def _stream_events(
        self, reply: Reply, key: ApiKey, request_id: str
    ) -> AsyncGenerator[bytes, None]:
        """Yield server-sent events.

        An error before the first event is raised; a later error is sent as an event.
        """
        usage, versions, begun = Usage(), set[int](), set[int]()
        pieces = self._generate_all(reply.request, key, usage, request_id)
        try:
            async with aclosing(pieces) as stream:
                async for piece in stream:
                    chunks = [] if piece.prompt in begun else reply.build_first_chunks(piece)
                    begun.add(piece.prompt)
                    versions.add(piece.version)
                    chunks += reply.build_chunks(piece)
                    yield b"".join(map(_encode_event, chunks)) or KEEP_ALIVE
            ending = map(_encode_event, reply.build_last_chunks(sorted(versions), usage))
            yield b"".join((*ending, DONE))
        except ApiError as error:
            if not begun:
                raise
            yield _encode_event(error.body())

    async def _generate_all(
        self, request: TextRequest, key: ApiKey, usage: Usage, request_id: str
    ) -> AsyncGenerator[PromptPiece, None]:
        """Yield the pieces of all answers, count their tokens, and charge the tokens to the key."""
        begun, outcome = time.monotonic(), "left"
        try:
            model = await self._find_model(request.model)
            with self._rate_limiter.charge(key, request.prompts, request.output_tokens) as charge:
                streams = [
                    self._generate_one(request, index, model, request_id)
                    for index in range(len(request.prompts))
                ]
                # a single stream needs no task and no queue
                merged = streams[0] if len(streams) == 1 else merge_streams(streams)
                async with aclosing(merged) as pieces:
                    async for piece in pieces:
                        usage.count_piece(piece)
                        charge.count_piece(piece.prompt, piece.piece)
                        yield piece
            outcome = "done"
        except ApiError as error:
            outcome = str(error.code or error.status)
            raise
        finally:
            log.info(
                "%s %s key %s, model %r: %d tokens in, %d out, %.3f s",
                *(request_id, outcome, key.name, request.model),
                *(usage.input_tokens, usage.output_tokens, time.monotonic() - begun),
            )

    async def _generate_one(
        self, request: TextRequest, index: int, model: ServedModel, request_id: str
    ) -> AsyncGenerator[PromptPiece, None]:
        """Yield the pieces of the answers to one prompt.

        The request to Triton names the version, so that the response can name the version too. If
        that version has just been replaced, the request is sent once more, to the new version.
        """
        suffix = f"-{index}" if len(request.prompts) > 1 else ""
        for may_retry in (True, False):
            pieces = self._client.generate(
                *(request.model, request.prompts[index], request.sampling),
                version=model.version,
                deadline=self._settings.deadline,
                request_id=f"{request_id}{suffix}",
            )
            begun = False
            try:
                async with aclosing(cast(AsyncGenerator[Piece, None], pieces)) as stream:
                    async for piece in stream:
                        begun = True
                        if is_cut_off(piece):
                            raise unavailable(request.model)
                        yield PromptPiece(index, model.version, piece)
                return
            except MillraceError as error:
                newer = model
                if may_retry and not begun and is_unknown_model(error):
                    newer = await self._find_model(model.name, fresh=True)
                if newer == model:
                    answer = translate_error(error, request.model, request.prompt_field)
                    raise _log_server_error(error, answer) from error
                model = newer

    async def _find_model(self, name: str, *, fresh: bool = False) -> ServedModel:
        try:
            models = await self._catalog.list_models(fresh=fresh)
            if name not in models and not fresh:  # it may just have been loaded
                models = await self._catalog.list_models(fresh=True)
        except TransientError as error:
            raise _log_server_error(error, unavailable(name)) from error
        if name in models:
            return models[name]
        is_unavailable = await self._catalog.is_unavailable(name)
        raise unavailable(name) if is_unavailable else unknown_model(name)

    def authenticate(self, headers: Mapping[str, str]) -> ApiKey:
        """Return the key of a request.

        Raises:
            ApiError: 401, there is no key, or an unknown one.
        """
        keys = self._key_file.read_current()
        if keys is not self._keys:
            self._keys = keys
            self._rate_limiter.retain(keys)
        scheme, _, secret = headers.get("authorization", "").partition(" ")
        key = find_owner(keys, secret.strip()) if scheme.lower() == "bearer" else None
        if key is not None:
            return key
        message = "Incorrect API key provided." if secret else "You did not provide an API key."
        raise ApiError(
            401,
            f"{message} Send one as: Authorization: Bearer KEY",
            type="authentication_error",
            code="invalid_api_key",
        )


def _encode_event(value: Mapping[str, Any]) -> bytes:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return b"data: " + text.encode() + b"\n\n"


def _model_json(model: ServedModel) -> dict[str, object]:
    return {
        "id": model.name,
        "object": "model",
        "created": model.since,
        "owned_by": "millrace",
        "system_fingerprint": fingerprint(model.name, [model.version]),
    }


def _log_server_error(error: MillraceError, answer: ApiError) -> ApiError:
    """Log an error unless the client caused it, and return the answer to the client."""
    if answer.status >= 500:
        log.warning("%s", " ".join(str(error).split()))
    return answer
