"""Packs documents, with their boundaries, into sequences of at most the context's length.

Best-fit packing (Ding et al. 2024, "Fewer Truncations Improve Language Modeling"): a document that
is longer than the context is cut into chunks of the context's length and a rest. Then chunks, the
longest first, go into the fullest sequence that still has room for them (best-fit decreasing). No
token is lost or repeated. Chunks are collected in a window, and every full window is packed by
itself, so memory does not grow with the number of documents.

A chunk is a whole document, or a part of one that is longer than the context. Attention must not
cross chunks, so `require_pieces_apart` tests each decoder before it is trained.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import torch

from millrace.models.common.errors import InputError
from millrace.models.config.dataset_spec import Split
from millrace.models.language.corpus.documents import Document, Ids, Mask

if TYPE_CHECKING:
    from transformers import PreTrainedModel

WINDOW_TOKENS = 4 * 1024 * 1024
WINDOW_PIECES = 65_536


@dataclass(frozen=True)
class Packed:
    """One packed sequence.

    Attributes:
        ids: int32 `[tokens]`, with at most `context` tokens.
        lengths: int32 `[chunks]`, tokens of each chunk; their sum is `tokens`.
        answer: bool `[tokens]`, true for tokens that count in the loss; None if all count.
    """

    ids: Ids
    lengths: Ids
    answer: Mask | None

    @property
    def loss_tokens(self) -> int:
        """Number of tokens that count in the loss; a chunk's first token is never predicted."""
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
    """Yield packed sequences; the same documents in the same order give the same sequences.

    Args:
        documents: documents in the order of the data.
        context: largest number of tokens in a sequence.
        window_tokens: number of waiting tokens at which a window is packed.
        window_pieces: number of waiting chunks at which a window is packed.
    """
    waiting: list[Document] = []
    tokens = 0
    for document in documents:
        for piece in pieces(document, context):
            if len(piece.ids) == context:
                yield _join([piece])
                continue
            waiting.append(piece)
            tokens += len(piece.ids)
        if tokens >= window_tokens or len(waiting) >= window_pieces:
            yield from _pack_window(waiting, context)
            waiting, tokens = [], 0
    yield from _pack_window(waiting, context)


def pieces(document: Document, context: int) -> list[Document]:
    """Cut a document into chunks of the context's length and a rest."""
    if len(document.ids) <= context:
        return [document]
    ids, answer = document.ids, document.answer
    ends = [slice(start, start + context) for start in range(0, len(ids), context)]
    # Copies, because a view of a waiting rest would keep the whole document in memory.
    return [
        Document(ids[part].copy(), None if answer is None else answer[part].copy()) for part in ends
    ]


def best_fit(lengths: Sequence[int], context: int) -> list[list[int]]:
    """Return the chunk indices of each sequence, ascending; sequences are sorted by first index.

    Args:
        lengths: tokens of each chunk, from 1 to `context`.
        context: largest number of tokens in a sequence.
    """
    bins: list[list[int]] = []
    with_room: dict[int, list[int]] = {}
    rooms: list[int] = []  # the free lengths that occur among the sequences, ascending
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


def _pack_window(waiting: Sequence[Document], context: int) -> Iterator[Packed]:
    for group in best_fit([len(piece.ids) for piece in waiting], context):
        yield _join([waiting[place] for place in group])


def _join(parts: Sequence[Document]) -> Packed:
    answers = [part.answer for part in parts if part.answer is not None]
    return Packed(
        np.concatenate([part.ids for part in parts]),
        np.array([len(part.ids) for part in parts], dtype=np.int32),
        np.concatenate(answers) if answers else None,
    )


_FIRST, _SECOND = 5, 7


def require_pieces_apart(decoder: "PreTrainedModel") -> None:
    """Refuse a decoder in which a chunk of a packed sequence sees the chunk before it.

    Recurrent decoders (mamba) carry their state over to the next chunk, and some other decoders
    (opt, falcon, bloom) build their own attention mask. The test compares the logits of a chunk
    alone with its logits behind another chunk.

    Args:
        decoder: a decoder on the CPU in float32; its training mode is restored.

    Raises:
        InputError: a chunk sees the one before it, or the decoder fails on the test's input.
    """
    was_training = decoder.training
    decoder.train(False)
    try:
        apart = _keeps_documents_apart(decoder)
    except Exception as error:  # an unusual forward may raise anything
        raise InputError(
            f"the decoder {decoder.config.model_type!r} fails on a short sequence",
            seen=f"{type(error).__name__}: {error}".splitlines()[0],
            valid="a decoder with inputs input_ids and position_ids, and params that fit together",
            hint="fix model.params: num_key_value_heads must divide num_attention_heads",
        ) from error
    finally:
        decoder.train(was_training)
    if not apart:
        raise InputError(
            f"the decoder {decoder.config.model_type!r} cannot be trained on packed sequences",
            seen="in a packed sequence, the logits of a document depend on the document before it",
            valid="a decoder that masks attention by position_ids: llama, qwen3, mistral, gpt2, …",
            hint="choose another model.params.architecture or model.pretrained",
        )


@torch.no_grad()
def _keeps_documents_apart(decoder: "PreTrainedModel") -> bool:
    vocabulary = int(decoder.config.get_text_config(decoder=True).vocab_size)
    tokens = torch.arange(_FIRST + _SECOND)[None] % vocabulary
    positions = torch.cat([torch.arange(_FIRST), torch.arange(_SECOND)])[None]
    packed = decoder(input_ids=tokens, position_ids=positions, use_cache=False).logits
    alone = decoder(
        input_ids=tokens[:, _FIRST:], position_ids=positions[:, _FIRST:], use_cache=False
    ).logits
    # Matrix kernels round differently by shape, so logits may differ by 1% of their standard
    # deviation. If a chunk sees another chunk, they differ by far more.
    spread = alone.std().clamp(min=1e-6)
    return bool(((packed[:, _FIRST:] - alone).abs().max() / spread) < 1e-2)


SCHEMA = pa.schema(
    [
        ("split", pa.string()),
        ("position", pa.int64()),
        ("input_ids", pa.list_(pa.int32())),
        ("lengths", pa.list_(pa.int32())),
        ("answer", pa.list_(pa.bool_())),
    ]
)
BATCH_TOKENS = 1024 * 1024
"""Number of tokens at which a record batch is written."""


def batches_of(
    split: Split, sequences: Iterable[Packed]
) -> Iterator[tuple[pa.RecordBatch, list[Packed]]]:
    """Yield record batches of `SCHEMA`, each with its sequences; `position` counts from 0."""
    waiting: list[Packed] = []
    tokens = position = 0
    for sequence in sequences:
        waiting.append(sequence)
        tokens += len(sequence.ids)
        if tokens >= BATCH_TOKENS:
            yield _batch(split, position, waiting), waiting
            position += len(waiting)
            waiting, tokens = [], 0
    if waiting:
        yield _batch(split, position, waiting), waiting


def _batch(split: Split, position: int, sequences: Sequence[Packed]) -> pa.RecordBatch:
    answers = [sequence.answer for sequence in sequences if sequence.answer is not None]
    kind = SCHEMA.field("answer").type
    arrays = [
        pa.repeat(pa.scalar(split, pa.string()), len(sequences)),
        pa.array(np.arange(position, position + len(sequences))),
        _lists([sequence.ids for sequence in sequences]),
        _lists([sequence.lengths for sequence in sequences]),
        _lists(answers) if answers else pa.nulls(len(sequences), kind),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _lists(parts: Sequence[np.ndarray]) -> pa.ListArray:  # type: ignore[type-arg]
    offsets = np.cumsum([0, *(len(part) for part in parts)], dtype=np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(np.concatenate(parts)))
