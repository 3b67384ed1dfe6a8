"""Requests let in, handed to Triton, and answered in OpenAI's form."""

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
from millrace.serving.openai_api.api_key import Key, owner
from millrace.serving.openai_api.api_key_file import KeyFile
from millrace.serving.openai_api.connection import EventStream, body_of, while_connected
from millrace.serving.openai_api.error_response import (
    Refusal,
    away,
    is_no_model,
    no_model,
    refusal_of,
)
from millrace.serving.openai_api.model_catalog import Catalog, Served
from millrace.serving.openai_api.rate_limit import Allowances
from millrace.serving.openai_api.reply import Heard, Reply, Usage, fingerprint, is_cut_off, merged
from millrace.serving.openai_api.request_body import Ask
from millrace.serving.triton.language.stream_client import ANSWER_SECONDS, AsyncLanguageClient
from millrace.serving.triton.language.stream_request import Piece

log = logging.getLogger("millrace.openai_api")

DONE = b"data: [DONE]\n\n"
BEAT = b": \n\n"
"""A comment: says that the answer goes on, and finds out whether the client is there."""


@dataclass(frozen=True)
class DoorSettings:
    """How the door stands.

    Attributes:
        triton: the server that answers.
        keys: the file of the API keys.
        deadline: seconds for a whole answer.
        max_body_bytes: of a request.
        max_requests: under way at a time.
        loopback_port: where it listens, on loopback alone; None where a proxy stands before it.
    """

    triton: Endpoint
    keys: Path
    deadline: float = ANSWER_SECONDS
    max_body_bytes: int = 2 * 2**20
    max_requests: int = 1024
    loopback_port: int | None = None


class Door:
    """Answers requests; made and used in one event loop.

    Args:
        settings: how it stands.
        clock: seconds that only grow.
        wall: seconds since the epoch.
    """

    def __init__(
        self,
        settings: DoorSettings,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._settings, self._clock, self._wall = settings, clock, wall
        self._client = AsyncLanguageClient(settings.triton)
        self._catalog = Catalog(settings.triton, clock, wall)
        self._key_file = KeyFile(settings.keys, clock)
        self._keys: tuple[Key, ...] = ()
        self._allowances = Allowances(clock)

    async def close(self) -> None:
        """Close the connections, and end what is streamed."""
        await self._client.close()
        await self._catalog.close()

    async def models(self, request: Request) -> Response:
        """List the language models that answer now."""
        self._key_of(request.headers)
        try:
            listing = await self._catalog.listing()
        except TransientError as error:
            raise _told(error, away("the server of the models")) from error
        found = [_model(served) for _, served in sorted(listing.items())]
        return JSONResponse({"object": "list", "data": found})

    async def model(self, request: Request) -> Response:
        """Describe one of them."""
        self._key_of(request.headers)
        return JSONResponse(_model(await self._served(request.path_params["model"])))

    async def answer(self, request: Request, read: Callable[[bytes], Ask]) -> Response:
        """Answer a request for text.

        Args:
            request: its body was not read yet.
            read: makes of the body what is asked.

        Raises:
            Refusal: it is not answered.
            ClientGone: nobody waits for the answer.
        """
        key = self._key_of(request.headers)
        self._allowances.check(key, 1)
        ask = read(await body_of(request, self._settings.max_body_bytes))
        request_id = request.state.request_id
        kind = "chatcmpl" if ask.is_chat else "cmpl"
        reply = Reply(ask, f"{kind}-{secrets.token_hex(16)}", int(self._wall()))
        if ask.stream:
            return EventStream(self._events(reply, key, request_id))
        whole = self._whole(reply, key, request_id)
        return JSONResponse(await while_connected(request.receive, whole))

    async def _whole(self, reply: Reply, key: Key, request_id: str) -> Mapping[str, Any]:
        usage, heard = Usage(), []
        async with aclosing(self._heard(reply.ask, key, usage, request_id)) as stream:
            async for each in stream:
                heard.append(each)
        return reply.whole(heard, usage)

    async def _events(self, reply: Reply, key: Key, request_id: str) -> AsyncGenerator[bytes, None]:
        """Yield server-sent events; a refusal is raised before the first, and sent after it."""
        usage, versions, opened = Usage(), set[int](), set[int]()
        try:
            async with aclosing(self._heard(reply.ask, key, usage, request_id)) as stream:
                async for each in stream:
                    chunks = [] if each.prompt in opened else reply.opening(each)
                    opened.add(each.prompt)
                    versions.add(each.version)
                    chunks += reply.chunks(each)
                    yield b"".join(map(_event, chunks)) or BEAT
            ending = map(_event, reply.closing(sorted(versions), usage))
            yield b"".join((*ending, DONE))
        except Refusal as refusal:
            if not opened:
                raise
            yield _event(refusal.body())

    async def _heard(
        self, ask: Ask, key: Key, usage: Usage, request_id: str
    ) -> AsyncGenerator[Heard, None]:
        """Yield the pieces of all answers, counted and charged to the key."""
        begun, outcome = self._clock(), "left"
        try:
            served = await self._served(ask.model)
            with self._allowances.charged(key, ask.prompts, ask.output_tokens) as charge:
                streams = [
                    self._prompt(ask, index, served, request_id)
                    for index in range(len(ask.prompts))
                ]
                # one needs no task and no queue of its own
                only = streams[0] if len(streams) == 1 else merged(streams)
                async with aclosing(only) as pieces:
                    async for each in pieces:
                        usage.hear(each)
                        charge.hear(each.prompt, each.piece)
                        yield each
            outcome = "done"
        except Refusal as refusal:
            outcome = str(refusal.code or refusal.status)
            raise
        finally:
            log.info(
                "%s %s key %s, model %r: %d tokens in, %d out, %.3f s",
                *(request_id, outcome, key.name, ask.model),
                *(usage.input_tokens, usage.output_tokens, self._clock() - begun),
            )

    async def _prompt(
        self, ask: Ask, index: int, served: Served, request_id: str
    ) -> AsyncGenerator[Heard, None]:
        """Yield the pieces of the answers to one prompt.

        The version is asked for by its number, so that the answer can name it; where it has just
        been replaced, the one that has come is asked.
        """
        suffix = f"-{index}" if len(ask.prompts) > 1 else ""
        for again in (True, False):
            pieces = self._client.generate(
                *(ask.model, ask.prompts[index], ask.sampling),
                version=served.version,
                deadline=self._settings.deadline,
                request_id=f"{request_id}{suffix}",
            )
            begun = False
            try:
                async with aclosing(cast(AsyncGenerator[Piece, None], pieces)) as stream:
                    async for piece in stream:
                        begun = True
                        if is_cut_off(piece):
                            raise away(ask.model)
                        yield Heard(index, served.version, piece)
                return
            except MillraceError as error:
                newer = served if begun or not again else await self._newer(served, error)
                if newer == served:
                    refusal = refusal_of(error, ask.model, ask.prompt_field)
                    raise _told(error, refusal) from error
                served = newer

    async def _newer(self, served: Served, error: MillraceError) -> Served:
        """Return what serves instead of a version that was not there, or the same."""
        return await self._served(served.name, fresh=True) if is_no_model(error) else served

    async def _served(self, name: str, *, fresh: bool = False) -> Served:
        try:
            listing = await self._catalog.listing(fresh=fresh)
            if name not in listing and not fresh:  # it may have come within the last second
                listing = await self._catalog.listing(fresh=True)
        except TransientError as error:
            raise _told(error, away(name)) from error
        if name in listing:
            return listing[name]
        raise away(name) if await self._catalog.is_away(name) else no_model(name)

    def _key_of(self, headers: Mapping[str, str]) -> Key:
        keys = self._key_file.now()
        if keys is not self._keys:
            self._keys = keys
            self._allowances.keep(keys)
        kind, _, secret = headers.get("authorization", "").partition(" ")
        found = owner(keys, secret.strip()) if kind.lower() == "bearer" else None
        if found is not None:
            return found
        message = "Incorrect API key provided." if secret else "You did not provide an API key."
        raise Refusal(
            401,
            f"{message} Send one as: Authorization: Bearer KEY",
            type="authentication_error",
            code="invalid_api_key",
        )


def _event(value: Mapping[str, Any]) -> bytes:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return b"data: " + text.encode() + b"\n\n"


def _model(served: Served) -> dict[str, object]:
    return {
        "id": served.name,
        "object": "model",
        "created": served.since,
        "owned_by": "millrace",
        "system_fingerprint": fingerprint(served.name, [served.version]),
    }


def _told(error: MillraceError, refusal: Refusal) -> Refusal:
    """Put an error into the log, unless it is the client's; return what its client is told."""
    if refusal.status >= 500:
        log.warning("%s", " ".join(str(error).split()))
    return refusal
