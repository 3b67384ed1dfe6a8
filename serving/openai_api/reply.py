"""Build OpenAI's response objects from the pieces that Triton streams: whole, or as chunks."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, TypeVar

from millrace.serving.openai_api.request_body import TextRequest
from millrace.serving.triton.streams.stream_request import Piece

COMPLETE = frozenset({"stop", "length"})
"""The finish reasons of an answer that was generated to its end."""

Json = dict[str, Any]


@dataclass(frozen=True)
class PromptPiece:
    """A streamed piece of the answers to one prompt.

    Attributes:
        prompt: the index of the prompt in the request.
        version: the version of the model that answers.
        piece: the piece that the model sent.
    """

    prompt: int
    version: int
    piece: Piece


@dataclass
class Usage:
    """The tokens that a request used; a prompt with several answers counts once."""

    inputs: dict[int, int] = field(default_factory=dict)
    output_tokens: int = 0

    def count_piece(self, piece: PromptPiece) -> None:
        """Add the tokens that a piece reports."""
        self.inputs[piece.prompt] = piece.piece.input_tokens
        self.output_tokens += sum(piece.piece.output_tokens)

    @property
    def input_tokens(self) -> int:
        """The tokens of all prompts."""
        return sum(self.inputs.values())

    def as_json(self) -> Json:
        """Return the usage as OpenAI's JSON object `usage`."""
        return {
            "prompt_tokens": self.input_tokens,
            "completion_tokens": self.output_tokens,
            "total_tokens": self.input_tokens + self.output_tokens,
        }


@dataclass(frozen=True)
class Reply:
    """Builds the response objects of one request.

    Attributes:
        request: the client's request.
        id: the id of the response.
        created: when the response was created, in whole seconds since the epoch.
    """

    request: TextRequest
    id: str
    created: int

    def build_response(self, pieces: Sequence[PromptPiece], usage: Usage) -> Json:
        """Return the whole response to a request that is not streamed."""
        is_chat = self.request.is_chat
        build_choice = _chat_choice if is_chat else _completion_choice
        answers = _join_answers(self.request, pieces).items()
        versions = sorted({each.version for each in pieces})
        return {
            **self._head("chat.completion" if is_chat else "text_completion", versions),
            "choices": [build_choice(index, text, reason) for index, (text, reason) in answers],
            "usage": usage.as_json(),
        }

    def build_first_chunks(self, piece: PromptPiece) -> list[Json]:
        """Return the first chunk of each answer of a chat, with the role; none for a completion."""
        if not self.request.is_chat:
            return []
        delta = {"role": "assistant", "content": ""}
        return [
            self._chunk(piece.version, _delta(index, delta, None))
            for index in range(self.request.n)
        ]

    def build_chunks(self, prompt_piece: PromptPiece) -> list[Json]:
        """Return the chunks for a piece: one per text and, in chats, one per finish reason."""
        piece, version = prompt_piece.piece, prompt_piece.version
        first = prompt_piece.prompt * self.request.n
        choices = []
        for index, (text, reason) in enumerate(
            zip(piece.texts, piece.finish_reasons, strict=True), first
        ):
            if not self.request.is_chat:
                if text or reason:
                    choices.append(_completion_choice(index, text, reason or None))
                continue
            if text:
                choices.append(_delta(index, {"content": text}, None))
            if reason:
                choices.append(_delta(index, {}, reason))
        return [self._chunk(version, choice) for choice in choices]

    def build_last_chunks(self, versions: Sequence[int], usage: Usage) -> list[Json]:
        """Return the chunk with the usage if the request asks for it; otherwise none."""
        if not self.request.include_usage:
            return []
        return [{**self._head(self._chunk_kind, versions), "choices": [], "usage": usage.as_json()}]

    @property
    def _chunk_kind(self) -> str:
        return "chat.completion.chunk" if self.request.is_chat else "text_completion"

    def _chunk(self, version: int, choice: Json) -> Json:
        usage = {"usage": None} if self.request.include_usage else {}
        return {**self._head(self._chunk_kind, [version]), "choices": [choice], **usage}

    def _head(self, kind: str, versions: Sequence[int]) -> Json:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.request.model,
            "system_fingerprint": fingerprint(self.request.model, versions),
        }


def fingerprint(model: str, versions: Sequence[int]) -> str:
    """Return the `system_fingerprint`: MODEL@VERSION of each version that answered."""
    return ",".join(f"{model}@{version}" for version in versions)


def is_cut_off(piece: Piece) -> bool:
    """Whether the model server stopped an answer before its end."""
    return any(reason and reason not in COMPLETE for reason in piece.finish_reasons)


def _join_answers(
    request: TextRequest, pieces: Sequence[PromptPiece]
) -> Mapping[int, tuple[str, str]]:
    """Return the text and the finish reason of each answer, by answer index in ascending order."""
    texts: dict[int, list[str]] = {index: [] for index in range(request.n * len(request.prompts))}
    reasons = dict.fromkeys(texts, "")
    for each in pieces:
        parts = zip(each.piece.texts, each.piece.finish_reasons, strict=True)
        for index, (text, reason) in enumerate(parts, each.prompt * request.n):
            texts[index].append(text)
            reasons[index] = reason or reasons[index]
    return {index: ("".join(parts), reasons[index]) for index, parts in texts.items()}


def _completion_choice(index: int, text: str, reason: str | None) -> Json:
    return {"index": index, "text": text, "logprobs": None, "finish_reason": reason}


def _chat_choice(index: int, text: str, reason: str) -> Json:
    return {
        "index": index,
        "message": {"role": "assistant", "content": text, "refusal": None},
        "logprobs": None,
        "finish_reason": reason,
    }


def _delta(index: int, delta: Json, reason: str | None) -> Json:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": reason}


Item = TypeVar("Item")
QUEUE_SIZE = 16
"""How many items of all streams together may wait to be yielded."""


async def merge_streams(
    streams: Sequence[AsyncGenerator[Item, None]],
) -> AsyncGenerator[Item, None]:
    """Yield the items of all streams as they arrive; the first error ends all streams.

    Args:
        streams: the generators; all are closed at the end, also after an error. Items must not be
            None or an exception.
    """
    queue: asyncio.Queue[Item | Exception | None] = asyncio.Queue(QUEUE_SIZE)
    tasks = [asyncio.create_task(_pump(stream, queue)) for stream in streams]
    try:
        open_streams = len(tasks)
        while open_streams:
            item = await queue.get()
            if isinstance(item, Exception):
                raise item
            if item is None:
                open_streams -= 1
            else:
                yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _pump(
    stream: AsyncGenerator[Item, None], queue: "asyncio.Queue[Item | Exception | None]"
) -> None:
    """Put the items of a stream into a queue, followed by None or the stream's error."""
    try:
        async with aclosing(stream):
            async for item in stream:
                await queue.put(item)
    except Exception as error:  # `merge_streams` raises it
        await queue.put(error)
    else:
        await queue.put(None)
