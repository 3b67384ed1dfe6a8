"""Packed sequences as rows: record batches of a token table."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from millrace.models.config.dataset_spec import Split
from millrace.models.language.corpus.packing import Packed

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
"""Tokens of a record batch, at most by a sequence more."""


def batches_of(
    split: Split, sequences: Iterable[Packed]
) -> Iterator[tuple[pa.RecordBatch, list[Packed]]]:
    """Yield record batches of `SCHEMA`, each with the sequences in it; positions count from 0."""
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
