"""A streaming client of a model that streams text behind Triton, for threads and for asyncio.

`tritonclient` has one stream for each client. Here every request has its own stream on a shared
connection. So a request can have its own deadline, and ending its stream cancels the request.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from millrace.models.common.errors import InputError, MillraceError, TransientError
from millrace.models.common.installation import Endpoint
from millrace.serving.triton.channel import channel_options
from millrace.serving.triton.streams.call_watchdog import SILENCE_SECONDS, Pulse, Target, Watchdog
from millrace.serving.triton.streams.stream_request import (
    NO_SUCH_MODEL,
    Messages,
    Piece,
    Sampling,
    build_request,
    death_error,
    is_death,
    is_from_own_backend,
    is_last,
    join_pieces,
    parse_error,
    parse_piece,
)

ANSWER_SECONDS = 600.0
ALIVE_SECONDS = 5.0
DEFAULTS = Sampling()
EOF = grpc.aio.EOF
STREAM_RESET = "RST_STREAM"
"""In gRPC's message, with the status INTERNAL, if the server behind the guard ended meanwhile."""

__all__ = ["AsyncStreamClient", "StreamClient", "Messages", "Piece", "Sampling"]


class StreamClient:
    """A connection to one server. It is thread-safe, but must not be used across a fork.

    Args:
        endpoint: the server.
        silence: seconds without a response after which the backend gets a health check.
        checks: whether its requests are checks of Millrace's own, which the guard does not record.
    """

    def __init__(
        self, endpoint: Endpoint, silence: float = SILENCE_SECONDS, *, checks: bool = False
    ) -> None:
        self.endpoint = endpoint
        self._watchdog = Watchdog(silence, self._pulse)
        self._channel = grpc.insecure_channel(
            endpoint.grpc, channel_options(endpoint, checks=checks)
        )
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    def __enter__(self) -> "StreamClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection, and end its streams."""
        self._watchdog.close()
        self._channel.close()

    def generate(
        self,
        model: str,
        prompt: str | Messages,
        sampling: Sampling | str = DEFAULTS,
        *,
        version: int | None = None,
        deadline: float = ANSWER_SECONDS,
        request_id: str = "",
    ) -> Iterator[Piece]:
        """Yield the pieces of the answers to a prompt as they arrive.

        To stop early, close the iterator (`contextlib.closing`), which cancels the request.

        Args:
            model: the model's name.
            prompt: a text to continue, or the messages of a chat.
            sampling: how the answer is generated; a string is sent unchanged as JSON.
            version: the model's version; None: the live version.
            deadline: the time limit of the whole answer, in seconds.
            request_id: the id of the request in Triton's log.

        Raises:
            InputError: the request is not valid, or the model does not exist.
            TransientError: the server is overloaded or unreachable, the model is not ready, or the
                deadline passed.
            WorkError: the server failed in another way.
        """
        request = build_request(model, prompt, sampling, version=version, request_id=request_id)
        call = self._stub.ModelStreamInfer(iter([request]), timeout=deadline)
        try:
            while (response := self._next(call, (model, version))) is not None:
                if is_last(response):
                    drain(call)
                piece = read_response(response, model)
                if piece is not None:
                    yield piece
                if is_last(response):
                    return
            raise early_end_error(model)
        except grpc.RpcError as error:
            if self._watchdog.was_ended(call):
                raise silence_error(model, self._watchdog.seconds) from error
            raise translate_error(error, model, self.endpoint, deadline) from error
        finally:
            self._watchdog.was_ended(call)
            call.cancel()

    def complete(
        self,
        model: str,
        prompt: str | Messages,
        sampling: Sampling | str = DEFAULTS,
        *,
        version: int | None = None,
        deadline: float = ANSWER_SECONDS,
    ) -> Piece:
        """Return the complete answers to a prompt as one piece.

        Raises:
            As `generate`.
        """
        return join_pieces(
            list(self.generate(model, prompt, sampling, version=version, deadline=deadline))
        )

    def ping(self, model: str, version: int | None = None, seconds: float = ALIVE_SECONDS) -> None:
        """Check that a model answers, with an empty prompt, which a live backend rejects.

        Raises:
            MillraceError: the model does not answer.
        """
        try:
            self.complete(model, "", version=version, deadline=seconds)
        except InputError as error:
            if error.what == NO_SUCH_MODEL:
                raise
            # any other InputError: a live backend rejected the empty prompt

    def _pulse(self, target: Target) -> Pulse:
        model, version = target
        try:
            self.complete(model, "", version=version, deadline=ALIVE_SECONDS)
        except MillraceError as error:
            return classify_error(error)
        return Pulse.QUIET

    def _next(self, call: Any, target: Target) -> pb.ModelStreamInferResponse | None:
        """Wait for the next response and return it; None after the last one."""
        with self._watchdog.watch(call, target):
            return next(call, None)


class AsyncStreamClient:
    """`StreamClient` for asyncio; created and used in one event loop.

    Args:
        endpoint: the server.
        silence: seconds without a response after which the backend gets a health check.
        checks: whether its requests are checks of Millrace's own, which the guard does not record.
    """

    def __init__(self, endpoint: Endpoint, silence: float = SILENCE_SECONDS) -> None:
        self.endpoint, self._silence = endpoint, silence
        self._channel = grpc.aio.insecure_channel(endpoint.grpc, channel_options(endpoint))
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    async def __aenter__(self) -> "AsyncStreamClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection, and end its streams."""
        await self._channel.close()

    async def generate(
        self,
        model: str,
        prompt: str | Messages,
        sampling: Sampling | str = DEFAULTS,
        *,
        version: int | None = None,
        deadline: float = ANSWER_SECONDS,
        request_id: str = "",
    ) -> AsyncIterator[Piece]:
        """Yield the pieces of the answers to a prompt as they arrive.

        To stop early, close the iterator (`contextlib.aclosing`) or cancel the task. Arguments and
        errors are those of `StreamClient.generate`.
        """
        request = build_request(model, prompt, sampling, version=version, request_id=request_id)
        call = self._stub.ModelStreamInfer(iter([request]), timeout=deadline)
        try:
            while (response := await self._next(call, model, version)) is not EOF:
                if is_last(response):
                    await call.read()
                piece = read_response(response, model)
                if piece is not None:
                    yield piece
                if is_last(response):
                    return
            raise early_end_error(model)
        except grpc.RpcError as error:
            raise translate_error(error, model, self.endpoint, deadline) from error
        finally:
            call.cancel()

    async def complete(
        self,
        model: str,
        prompt: str | Messages,
        sampling: Sampling | str = DEFAULTS,
        *,
        version: int | None = None,
        deadline: float = ANSWER_SECONDS,
    ) -> Piece:
        """Return the complete answers to a prompt as one piece; errors are those of `generate`."""
        pieces = self.generate(model, prompt, sampling, version=version, deadline=deadline)
        return join_pieces([piece async for piece in pieces])

    async def _next(self, call: Any, model: str, version: int | None) -> Any:
        """Wait for the next response and return it; raise an error if the backend is dead."""
        reading = asyncio.ensure_future(call.read())
        try:
            for silences in range(1, Pulse.QUIET + 1):
                done, _waiting = await asyncio.wait({reading}, timeout=self._silence)
                if done:
                    return reading.result()
                if silences >= await self._pulse(model, version):
                    break
        finally:
            reading.cancel()
        raise silence_error(model, self._silence)

    async def _pulse(self, model: str, version: int | None) -> Pulse:
        try:
            await self.complete(model, "", version=version, deadline=ALIVE_SECONDS)
        except MillraceError as error:
            return classify_error(error)
        return Pulse.QUIET


def classify_error(error: MillraceError) -> Pulse:
    """Return the pulse of a model whose health check raised this error."""
    if is_death(error):
        return Pulse.DEAD
    return Pulse.BEATING if is_from_own_backend(error) else Pulse.QUIET


def drain(call: Any) -> None:
    """Wait until the server ends a call whose last response was read.

    The server ends the call at once. If the client cancelled the call before that, Triton 2.51
    could never unload the model.
    """
    for _ in call:
        pass


def read_response(response: pb.ModelStreamInferResponse, model: str) -> Piece | None:
    """Return the piece in a response; None if it only marks the end of the stream.

    Raises:
        MillraceError: the response is an error.
    """
    if response.error_message:
        raise parse_error(response.error_message, model)
    return parse_piece(response.infer_response)


def early_end_error(model: str) -> TransientError:
    """Return the error for a stream that ended without a last piece."""
    return TransientError(
        f"{model} did not answer", seen="the stream ended early", hint="try again"
    )


def silence_error(model: str, seconds: float) -> TransientError:
    """Return the error for a stream that received nothing for `seconds`."""
    return death_error(model, f"no response arrived for {seconds:g} s")


def translate_error(error: Any, model: str, endpoint: Endpoint, seconds: float) -> MillraceError:
    """Return the Millrace error for a gRPC error."""
    what, code = f"{model} did not answer", error.code()
    if code == grpc.StatusCode.DEADLINE_EXCEEDED:
        return TransientError(
            what, seen=f"{seconds:g} s were not enough", hint="check the load of Triton"
        )
    if code == grpc.StatusCode.UNAVAILABLE or STREAM_RESET in (error.details() or ""):
        return TransientError(
            what,
            seen=f"no Triton answers at {endpoint.grpc}",
            hint="start Triton with: millrace up; or set MILLRACE_TRITON to a running server",
        )
    if code == grpc.StatusCode.CANCELLED:
        return TransientError(what, seen="the call was cancelled")
    return parse_error(error.details() or str(code), model)
