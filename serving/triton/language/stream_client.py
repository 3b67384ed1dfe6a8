"""A streaming client of a language model behind Triton, for threads and for asyncio.

`tritonclient` keeps one stream in a client; here every request has a stream of its own on one
connection, so that it has a deadline, and ending it tells the server, which then drops the request.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from types import TracebackType
from typing import Any

import grpc
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from millrace.models.common.errors import InputError, MillraceError, TransientError, WorkError
from millrace.models.common.installation import Endpoint
from millrace.serving.triton.language.call_watchdog import SILENCE_SECONDS, Pulse, Silence, Target
from millrace.serving.triton.language.stream_request import (
    NO_SUCH,
    Messages,
    Piece,
    Sampling,
    died,
    error_of,
    is_death,
    is_last,
    is_ours,
    joined,
    piece_of,
    request_of,
)

ANSWER_SECONDS = 600.0
ALIVE_SECONDS = 5.0
OPTIONS = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))
DEFAULTS = Sampling()
EOF = grpc.aio.EOF

__all__ = ["AsyncLanguageClient", "LanguageClient", "Messages", "Piece", "Sampling"]


class LanguageClient:
    """A connection to one server. Safe to use from several threads; not across a fork.

    Args:
        endpoint: the server.
        silence: seconds without a word after which it is looked whether the backend died.
    """

    def __init__(self, endpoint: Endpoint, silence: float = SILENCE_SECONDS) -> None:
        self.endpoint = endpoint
        self._silence = Silence(silence, self._pulse)
        self._channel = grpc.insecure_channel(endpoint.grpc, options=OPTIONS)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    def __enter__(self) -> "LanguageClient":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection, and end its streams."""
        self._silence.close()
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
        """Yield the pieces of the answers to a prompt, as they come.

        Whoever stops early closes the iterator (`contextlib.closing`), and the server ends its
        work; so does the iterator when it is forgotten.

        Args:
            model: its name.
            prompt: a text to go on with, or the messages of a chat.
            sampling: how the answer is made, also as JSON.
            version: of the model; None for the one that serves.
            deadline: seconds for the whole answer.
            request_id: shows in Triton's log.

        Raises:
            InputError: the request is not valid, or there is no such model.
            TransientError: too much waits, the server or the model is away, or time is up.
            WorkError: the server failed otherwise.
        """
        request = request_of(model, prompt, sampling, version=version, request_id=request_id)
        call = self._stub.ModelStreamInfer(iter([request]), timeout=deadline)
        try:
            while (response := self._next(call, (model, version))) is not None:
                if is_last(response):
                    drained(call)
                piece = checked(response, model)
                if piece is not None:
                    yield piece
                if is_last(response):
                    return
            raise broken_off(model)
        except grpc.RpcError as error:
            if self._silence.ended(call):
                raise silent(model, self._silence.seconds) from error
            raise translated(error, model, self.endpoint, deadline) from error
        finally:
            self._silence.ended(call)
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
        """Return the whole answers to a prompt.

        Raises:
            As `generate`.
        """
        return joined(
            list(self.generate(model, prompt, sampling, version=version, deadline=deadline))
        )

    def ping(self, model: str, version: int | None = None, seconds: float = ALIVE_SECONDS) -> None:
        """See whether a model answers, by a request that gives it no work.

        Raises:
            MillraceError: it does not.
        """
        try:
            self.complete(model, "", version=version, deadline=seconds)
        except InputError as error:
            if error.what == NO_SUCH:
                raise
            # else it is the answer to a request for nothing

    def is_alive(self, model: str, version: int | None = None) -> bool:
        """Tell whether a model answers, by a request that gives it no work."""
        try:
            self.ping(model, version)
        except MillraceError:
            return False
        return True

    def _pulse(self, target: Target) -> Pulse:
        model, version = target
        try:
            self.complete(model, "", version=version, deadline=ALIVE_SECONDS)
        except MillraceError as error:
            return pulse_of(error)
        return Pulse.QUIET

    def _next(self, call: Any, target: Target) -> pb.ModelStreamInferResponse | None:
        """Wait for the next response; None when there is none."""
        with self._silence.watched(call, target):
            return next(call, None)


class AsyncLanguageClient:
    """The same for asyncio; made and used in one event loop.

    Args:
        endpoint: the server.
        silence: seconds without a word after which it is looked whether the backend died.
    """

    def __init__(self, endpoint: Endpoint, silence: float = SILENCE_SECONDS) -> None:
        self.endpoint, self._silence = endpoint, silence
        self._channel = grpc.aio.insecure_channel(endpoint.grpc, options=OPTIONS)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    async def __aenter__(self) -> "AsyncLanguageClient":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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
        """Yield the pieces of the answers to a prompt, as they come.

        Whoever stops early closes the iterator (`contextlib.aclosing`); a task that is cancelled
        does. Arguments and errors are those of `LanguageClient.generate`.
        """
        request = request_of(model, prompt, sampling, version=version, request_id=request_id)
        call = self._stub.ModelStreamInfer(iter([request]), timeout=deadline)
        try:
            while (response := await self._next(call, model, version)) is not EOF:
                if is_last(response):
                    await call.read()
                piece = checked(response, model)
                if piece is not None:
                    yield piece
                if is_last(response):
                    return
            raise broken_off(model)
        except grpc.RpcError as error:
            raise translated(error, model, self.endpoint, deadline) from error
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
        """Return the whole answers to a prompt; errors are those of `generate`."""
        pieces = self.generate(model, prompt, sampling, version=version, deadline=deadline)
        return joined([piece async for piece in pieces])

    async def _next(self, call: Any, model: str, version: int | None) -> Any:
        """Wait for the next response, and end the call when its backend is dead."""
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
        raise silent(model, self._silence)

    async def _pulse(self, model: str, version: int | None) -> Pulse:
        try:
            await self.complete(model, "", version=version, deadline=ALIVE_SECONDS)
        except MillraceError as error:
            return pulse_of(error)
        return Pulse.QUIET


def pulse_of(error: MillraceError) -> Pulse:
    """Return what the answer to a request for nothing says of the model."""
    if is_death(error):
        return Pulse.DEAD
    return Pulse.BEATS if is_ours(error) else Pulse.QUIET


def drained(call: Any) -> None:
    """Wait until the server ends a call whose last response was read, which it does at once.

    A call that is cancelled just then keeps Triton 2.51 from ever unloading the model.
    """
    for _ in call:
        pass


def checked(response: pb.ModelStreamInferResponse, model: str) -> Piece | None:
    """Return what a response says, or raise the error that it is."""
    if response.error_message:
        raise error_of(response.error_message, model)
    return piece_of(response.infer_response)


def broken_off(model: str) -> WorkError:
    """Return the error of a stream that ended without a last piece."""
    return TransientError(
        f"{model} did not answer", seen="the stream ended early", hint="try again"
    )


def silent(model: str, seconds: float) -> TransientError:
    """Return the error of a stream that heard nothing for so long."""
    return died(model, f"nothing came for {seconds:g} s")


def translated(error: Any, model: str, endpoint: Endpoint, seconds: float) -> MillraceError:
    """Turn an error of gRPC into ours."""
    what, code = f"{model} did not answer", error.code()
    if code == grpc.StatusCode.DEADLINE_EXCEEDED:
        return TransientError(what, seen=f"{seconds:g} s were not enough", hint="see its load")
    if code == grpc.StatusCode.UNAVAILABLE:
        return TransientError(
            what,
            seen=f"no Triton answers at {endpoint.grpc}",
            hint="start it with: millrace up; or set MILLRACE_TRITON to one that runs",
        )
    if code == grpc.StatusCode.CANCELLED:
        return TransientError(what, seen="the call was cancelled")
    return error_of(error.details() or str(code), model)
