"""Packs documents into sequences of at most the context's length, boundaries kept.

Best-fit packing (Ding et al. 2024, "Fewer Truncations Improve Language Modeling"): a document that
is longer than the context is cut into pieces of its length and a rest; then pieces go, by falling
length, each into the sequence with the least room that it fits into (best-fit decreasing). No token
is lost, and none is there twice. It is done window by window, so memory does not grow with the
number of documents.

Whether a decoder keeps the documents of a sequence apart is tried before it is trained on any.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from millrace.models.common.errors import InputError
from millrace.models.language.corpus.documents import Document, Ids, Mask

if TYPE_CHECKING:
    from transformers import PreTrainedModel

WINDOW_TOKENS = 4 * 1024 * 1024
WINDOW_PIECES = 65_536


@dataclass(frozen=True)
class Packed:
    """One sequence.

    Attributes:
        ids: int32 `[tokens]`, at most the context.
        lengths: int32 `[pieces]`, their sum is `tokens`.
        answer: bool `[tokens]`, which tokens count in the loss; None for all.
    """

    ids: Ids
    lengths: Ids
    answer: Mask | None

    @property
    def loss_tokens(self) -> int:
        """Tokens that are predicted: the first of a piece has nothing before it."""
        counted = np.ones(len(self.ids), np.bool_) if self.answer is None else self.answer.copy()
        counted[np.cumsum(self.lengths) - self.lengths] = False
        return int(counted.sum())


def pack(
    documents: Iterable[Document],
    context: int,
    *,
    window_tokens: int = WINDOW_TOKENS,
    window_pieces: int = WINDOW_PIECES,
) -> Iterator[Packed]:
    """Yield packed sequences; the same documents in the same order make the same ones.

    Args:
        documents: in the order of the data.
        context: tokens of a sequence at most.
        window_tokens: tokens that wait to be packed, at most by a document more.
        window_pieces: pieces likewise.
    """
    waiting: list[Document] = []
    tokens = 0
    for document in documents:
        for piece in pieces(document, context):
            if len(piece.ids) == context:
                yield _joined([piece])
                continue
            waiting.append(piece)
            tokens += len(piece.ids)
        if tokens >= window_tokens or len(waiting) >= window_pieces:
            yield from _packed(waiting, context)
            waiting, tokens = [], 0
    yield from _packed(waiting, context)


def pieces(document: Document, context: int) -> list[Document]:
    """Cut a document into pieces of the context's length, and what is left over."""
    if len(document.ids) <= context:
        return [document]
    ids, answer = document.ids, document.answer
    ends = [slice(start, start + context) for start in range(0, len(ids), context)]
    # Copies: a rest that waits would keep the whole document in memory.
    return [
        Document(ids[part].copy(), None if answer is None else answer[part].copy()) for part in ends
    ]


def best_fit(lengths: Sequence[int], context: int) -> list[list[int]]:
    """Return which pieces go together: their places, in the order of the first of each.

    Args:
        lengths: of the pieces, each from 1 to `context`.
        context: the room of a sequence.
    """
    bins: list[list[int]] = []
    with_room: dict[int, list[int]] = {}
    rooms: list[int] = []  # those that some sequence has, rising
    for place in sorted(range(len(lengths)), key=lambda place: -lengths[place]):
        fitting = bisect_left(rooms, lengths[place])
        if fitting == len(rooms):
            room, taken = context, len(bins)
            bins.append([])
        else:
            room = rooms[fitting]
            taken = with_room[room].pop()
            if not with_room[room]:
                del with_room[room], rooms[fitting]
        bins[taken].append(place)
        left = room - lengths[place]
        if left not in with_room:
            with_room[left] = []
            insort(rooms, left)
        with_room[left].append(taken)
    return sorted(sorted(each) for each in bins)


def _packed(waiting: Sequence[Document], context: int) -> Iterator[Packed]:
    for installation in best_fit([len(piece.ids) for piece in waiting], context):
        yield _joined([waiting[place] for place in installation])


def _joined(parts: Sequence[Document]) -> Packed:
    answers = [part.answer for part in parts if part.answer is not None]
    return Packed(
        np.concatenate([part.ids for part in parts]),
        np.array([len(part.ids) for part in parts], dtype=np.int32),
        np.concatenate(answers) if answers else None,
    )


_FIRST, _SECOND = 5, 7


def require_pieces_apart(decoder: "PreTrainedModel") -> None:
    """Refuse a decoder whose second piece sees the first.

    Recurrent ones carry their state over (mamba), some build a mask of their own (opt, falcon,
    bloom). The answers for a piece, alone and behind another, are compared.

    Args:
        decoder: on the CPU, float32; its mode is put back.

    Raises:
        InputError: it does not keep them apart, or cannot be tried.
    """
    was_training = decoder.training
    decoder.train(False)
    try:
        apart = _apart(decoder)
    except Exception as error:  # whatever an unusual forward raises
        raise InputError(
            f"a decoder {decoder.config.model_type!r} fails on a short sequence",
            seen=f"{type(error).__name__}: {error}".splitlines()[0],
            valid="a decoder that takes input_ids and position_ids, and whose params fit together",
            hint="fix model.params: num_key_value_heads divides num_attention_heads",
        ) from error
    finally:
        decoder.train(was_training)
    if not apart:
        raise InputError(
            f"a decoder {decoder.config.model_type!r} cannot be trained on packed sequences",
            seen="the second piece of a sequence is answered by the first as well",
            valid="a decoder with attention by position_ids: llama, qwen3, mistral, gpt2, …",
            hint="choose another model.params.architecture or model.pretrained",
        )


@torch.no_grad()
def _apart(decoder: "PreTrainedModel") -> bool:
    vocabulary = int(decoder.config.get_text_config(decoder=True).vocab_size)
    tokens = torch.arange(_FIRST + _SECOND)[None] % vocabulary
    positions = torch.cat([torch.arange(_FIRST), torch.arange(_SECOND)])[None]
    packed = decoder(input_ids=tokens, position_ids=positions, use_cache=False).logits
    alone = decoder(
        input_ids=tokens[:, _FIRST:], position_ids=positions[:, _FIRST:], use_cache=False
    ).logits
    # A hundredth: matrix kernels round differently by shape; a piece that sees another is far off.
    spread = alone.std().clamp(min=1e-6)
    return bool(((packed[:, _FIRST:] - alone).abs().max() / spread) < 1e-2)
