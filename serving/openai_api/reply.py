"""Pieces of answers to OpenAI's objects: whole, or streamed in the order in which they come."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from millrace.serving.openai_api.request_body import Ask
from millrace.serving.triton.language.stream_request import Piece

ENDS = frozenset({"stop", "length"})
"""Why an answer may have ended that is whole."""

Json = dict[str, Any]


@dataclass(frozen=True)
class Heard:
    """A piece of the answers to one prompt.

    Attributes:
        prompt: its index in the request.
        version: of the model that answers.
        piece: what came.
    """

    prompt: int
    version: int
    piece: Piece


@dataclass
class Usage:
    """Tokens of a request; a prompt counts once, whatever its answers."""

    inputs: dict[int, int] = field(default_factory=dict)
    output_tokens: int = 0

    def hear(self, heard: Heard) -> None:
        """Count a piece."""
        self.inputs[heard.prompt] = heard.piece.input_tokens
        self.output_tokens += sum(heard.piece.output_tokens)

    @property
    def input_tokens(self) -> int:
        """Tokens of the prompts."""
        return sum(self.inputs.values())

    def as_json(self) -> Json:
        """Return OpenAI's object."""
        return {
            "prompt_tokens": self.input_tokens,
            "completion_tokens": self.output_tokens,
            "total_tokens": self.input_tokens + self.output_tokens,
        }


@dataclass(frozen=True)
class Reply:
    """What every object of one answer has alike.

    Attributes:
        ask: what was asked.
        id: of the answer.
        created: whole seconds since the epoch.
    """

    ask: Ask
    id: str
    created: int

    def whole(self, heard: Sequence[Heard], usage: Usage) -> Json:
        """Return the answer that is not streamed."""
        make = _chat_choice if self.ask.is_chat else _completion_choice
        choices = [
            make(index, text, reason) for index, (text, reason) in _answers(self.ask, heard).items()
        ]
        kind = "chat.completion" if self.ask.is_chat else "text_completion"
        versions = sorted({each.version for each in heard})
        return {
            **self._head(kind, versions),
            "choices": choices,
            "usage": usage.as_json(),
        }

    def opening(self, heard: Heard) -> list[Json]:
        """Return the chunks that say who speaks, before the first text of a chat's answers."""
        if not self.ask.is_chat:
            return []
        delta = {"role": "assistant", "content": ""}
        return [
            self._chunk(heard.version, _delta(index, delta, None)) for index in range(self.ask.n)
        ]

    def chunks(self, heard: Heard) -> list[Json]:
        """Return the chunks of a piece: one for each answer that it has something of."""
        piece, first = heard.piece, heard.prompt * self.ask.n
        found = []
        for index, (text, reason) in enumerate(
            zip(piece.texts, piece.finish_reasons, strict=True), first
        ):
            if not text and not reason:
                continue
            if not self.ask.is_chat:
                choice = _completion_choice(index, text, reason or None)
                found.append(self._chunk(heard.version, choice))
                continue
            if text:
                found.append(self._chunk(heard.version, _delta(index, {"content": text}, None)))
            if reason:
                found.append(self._chunk(heard.version, _delta(index, {}, reason)))
        return found

    def closing(self, versions: Sequence[int], usage: Usage) -> list[Json]:
        """Return the chunk with the usage, if it is wanted."""
        if not self.ask.include_usage:
            return []
        return [{**self._head(self._chunk_kind, versions), "choices": [], "usage": usage.as_json()}]

    @property
    def _chunk_kind(self) -> str:
        return "chat.completion.chunk" if self.ask.is_chat else "text_completion"

    def _chunk(self, version: int, choice: Json) -> Json:
        usage = {"usage": None} if self.ask.include_usage else {}
        return {**self._head(self._chunk_kind, [version]), "choices": [choice], **usage}

    def _head(self, kind: str, versions: Sequence[int]) -> Json:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.ask.model,
            "system_fingerprint": fingerprint(self.ask.model, versions),
        }


def fingerprint(model: str, versions: Sequence[int]) -> str:
    """Return a name for what answers: the model and its version, or those of several prompts."""
    return ",".join(f"{model}@{version}" for version in versions)


def is_cut_off(piece: Piece) -> bool:
    """Tell whether the server gave an answer up before its end."""
    return any(reason and reason not in ENDS for reason in piece.finish_reasons)


def _answers(ask: Ask, heard: Sequence[Heard]) -> Mapping[int, tuple[str, str]]:
    """Return text and reason of each answer by its index, ascending."""
    texts: dict[int, list[str]] = {index: [] for index in range(ask.n * len(ask.prompts))}
    reasons = dict.fromkeys(texts, "")
    for each in heard:
        parts = zip(each.piece.texts, each.piece.finish_reasons, strict=True)
        for index, (text, reason) in enumerate(parts, each.prompt * ask.n):
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
AHEAD = 16
"""Items that are taken before somebody wants them."""


@dataclass(frozen=True)
class _End:
    """The end of a stream: by an error, or as it should."""

    error: Exception | None = None


@dataclass(frozen=True)
class _Got(Generic[Item]):
    """An item of a stream."""

    item: Item


async def merged(streams: Sequence[AsyncGenerator[Item, None]]) -> AsyncGenerator[Item, None]:
    """Yield the items of all streams; the first error ends all.

    Args:
        streams: closed in the end, however it comes.
    """
    queue: asyncio.Queue[_Got[Item] | _End] = asyncio.Queue(AHEAD)
    tasks = [asyncio.create_task(_pump(stream, queue)) for stream in streams]
    try:
        open_streams = len(tasks)
        while open_streams:
            match await queue.get():
                case _Got(item):
                    yield item
                case _End(error=Exception() as error):
                    raise error
                case _End():
                    open_streams -= 1
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _pump(
    stream: AsyncGenerator[Item, None], queue: "asyncio.Queue[_Got[Item] | _End]"
) -> None:
    try:
        async with aclosing(stream):
            async for item in stream:
                await queue.put(_Got(item))
    except Exception as error:  # it is raised where the items are taken
        await queue.put(_End(error))
    else:
        await queue.put(_End())
