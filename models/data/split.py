"""Row keys, buckets and splits: a row's key alone decides its split.

`_key` is the declared key columns joined by `|`. If no key is declared, `_key` is a hash of the
whole row in 32 hexadecimal digits. `_bucket`, 0 to 9999, is `pandas.util.hash_array` of `_key`
(SipHash-2-4 of the UTF-8 text with the key `HASH_KEY`, little-endian) modulo 10,000. A test pins
`_key` and `_bucket`, so that no upgrade of a library moves rows to another split unnoticed.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pandas.util import hash_array

from millrace.models.config.dataset_spec import Split, SplitSpec
from millrace.models.data.schema import TableSchema

BUCKETS = 10_000
HASH_KEY = "millrace-row-key"  # SipHash takes exactly 16 bytes

Hashes = npt.NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_HEX = np.frombuffer(b"0123456789abcdef", dtype=np.uint8)
_NULL = np.uint64(0x6D696C6C72616365)
_BLOCK_ROWS = 16_384
"""Rows that are hashed at a time, so that their hashes stay in the processor's cache."""


def with_keys(good: pa.RecordBatch, schema: TableSchema, hashes: Hashes) -> pa.RecordBatch:
    """Return checked rows with `_key` and `_bucket`, with the schema `TableSchema.stored`."""
    return with_hashed_keys(good, schema, hashes)[0]


def with_hashed_keys(
    good: pa.RecordBatch, schema: TableSchema, hashes: Hashes
) -> tuple[pa.RecordBatch, Hashes]:
    """Return what `with_keys` returns, and the hash of each key."""
    keys = row_keys(good, schema.key, hashes)
    hashed = hash_texts(keys)
    columns = [*good.columns, keys, _buckets_of(hashed)]
    return pa.RecordBatch.from_arrays(columns, schema=schema.stored), hashed


def hash_rows(batch: pa.RecordBatch) -> Hashes:
    """Return two 64-bit hashes of each row's values, uint64 `[rows, 2]`.

    The hashes depend on the values and on the column order, but not on how rows are batched.
    """
    hashes = np.empty((batch.num_rows, 2), dtype=np.uint64)
    for start in range(0, batch.num_rows, _BLOCK_ROWS):
        block = batch.slice(start, _BLOCK_ROWS)
        first, second = (np.full(block.num_rows, seed) for seed in _MIX)
        for column in block.columns:
            hashed = _hash_column(column)
            first += hashed
            _mix(first)
            second ^= hashed
            second += _GOLDEN
            _mix(second)
        hashes[start : start + block.num_rows, 0] = first
        hashes[start : start + block.num_rows, 1] = second
    return hashes


def row_keys(batch: pa.RecordBatch, key: tuple[str, ...], hashes: Hashes) -> pa.Array:
    """Return `_key`: the key columns joined, or the hashes in hexadecimal."""
    return joined_keys(batch, key) if key else hash_keys(hashes)


def joined_keys(batch: pa.RecordBatch | pa.Table, key: tuple[str, ...]) -> pa.Array:
    """Return the key columns as text, joined by `|`; a `|` in a column is escaped."""
    texts = [batch.column(name).cast(pa.string()) for name in key]
    if len(texts) == 1:
        return texts[0]
    escaped = [
        pc.replace_substring(pc.replace_substring(t, "\\", "\\\\"), "|", "\\|") for t in texts
    ]
    return pc.binary_join_element_wise(*escaped, "|")


def hash_keys(hashes: Hashes) -> pa.Array:
    """Return hashes, uint64 `[rows, 2]`, as strings of 32 hexadecimal digits."""
    data = np.ascontiguousarray(hashes.astype(">u8")).view(np.uint8).reshape(len(hashes), 16)
    digits = np.empty((len(hashes), 32), dtype=np.uint8)
    digits[:, 0::2], digits[:, 1::2] = _HEX[data >> 4], _HEX[data & 15]
    offsets = np.arange(0, 32 * len(hashes) + 1, 32, dtype=np.int32)
    return pa.StringArray.from_buffers(len(hashes), pa.py_buffer(offsets), pa.py_buffer(digits))


def buckets(keys: pa.Array) -> pa.Array:
    """Return the `_bucket` of each string key, int32 in 0..9999."""
    return _buckets_of(hash_texts(keys))


def _buckets_of(hashed: Hashes) -> pa.Array:
    return pa.array((hashed % np.uint64(BUCKETS)).astype(np.int32))


def split_bounds(split: SplitSpec) -> dict[Split, tuple[int, int]]:
    """Return `(low, high)` of each split, whose buckets are `low <= _bucket < high`.

    The test split has the first buckets and validation the next, so that the test rows stay the
    same if the shares of the other two splits change.
    """
    test = round(split.test * BUCKETS)
    validation = test + round(split.validation * BUCKETS)
    return {"test": (0, test), "validation": (test, validation), "train": (validation, BUCKETS)}


@dataclass
class Digest:
    """Digest of a set of rows: the sums of the rows' hashes, which do not depend on row order."""

    rows: int = 0
    sums: Hashes = field(default_factory=lambda: np.zeros(2, dtype=np.uint64))

    def update(self, hashes: Hashes) -> None:
        """Add rows by their hashes, uint64 `[rows, 2]`."""
        self.rows += len(hashes)
        self.sums = self.sums + hashes.sum(axis=0, dtype=np.uint64)

    def add(self, other: "Digest") -> None:
        """Add the rows of another digest."""
        self.rows += other.rows
        self.sums = self.sums + other.sums

    def hexdigest(self) -> str:
        """Return 48 hexadecimal digits: the two sums and the number of rows."""
        return "".join(f"{int(part):016x}" for part in (*self.sums, self.rows))

    @classmethod
    def from_hex(cls, text: str) -> "Digest":
        """Return the digest with these hexadecimal digits."""
        first, second, rows = (int(text[start : start + 16], 16) for start in (0, 16, 32))
        return cls(rows, np.array([first, second], dtype=np.uint64))


def _hash_column(array: pa.Array) -> Hashes:
    """Return a hash for each cell, uint64 `[rows]`."""
    if pa.types.is_list(array.type):
        hashed = _hash_vectors(array)
    elif pa.types.is_string(array.type):
        encoded = array.dictionary_encode()
        of_value = hash_texts(encoded.dictionary)
        codes = encoded.indices.fill_null(0).to_numpy(zero_copy_only=False)
        hashed = of_value[codes] if len(of_value) else np.zeros(len(array), dtype=np.uint64)
    else:
        hashed = _hash_numbers(_filled(array))
    if array.null_count:
        hashed = np.where(array.is_null().to_numpy(zero_copy_only=False), _NULL, hashed)
    return hashed


def hash_texts(array: pa.Array) -> Hashes:
    """Return a 64-bit hash of each text, which never changes."""
    texts = array.to_numpy(zero_copy_only=False).astype(object, copy=False)
    hashed: Hashes = hash_array(texts, hash_key=HASH_KEY, categorize=False)
    return hashed


def _hash_numbers(values: npt.NDArray[Any]) -> Hashes:
    """Hash numbers by their bits; -0.0 is hashed as 0.0, and a float32 as float64."""
    if values.dtype.kind == "f":
        bits = (values.astype(np.float64) + 0.0).view(np.uint64)
    else:
        bits = values.astype(np.int64).view(np.uint64)
    bits += _GOLDEN
    _mix(bits)
    return bits


def _hash_vectors(array: pa.Array) -> Hashes:
    """Hash lists: the sum of the elements' hashes, each times an odd hash of its index."""
    lengths = pc.list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False)
    starts = np.cumsum(lengths) - lengths
    place = (np.arange(int(lengths.sum())) - np.repeat(starts, lengths)).astype(np.uint64)
    elements = _hash_numbers(_filled(array.flatten())) * (_mixed(place + _GOLDEN) | np.uint64(1))
    sums = np.concatenate([[np.uint64(0)], np.cumsum(elements, dtype=np.uint64)])
    ends = starts + lengths
    return _mixed(sums[ends] - sums[starts] + lengths.astype(np.uint64))


def _filled(array: pa.Array) -> npt.NDArray[Any]:
    filled = array.fill_null(False if pa.types.is_boolean(array.type) else 0)
    return np.asarray(filled.to_numpy(zero_copy_only=False))


def _mixed(bits: Hashes) -> Hashes:
    """Return mixed bits; see `_mix`."""
    mixed = bits.copy()
    _mix(mixed)
    return mixed


def _mix(bits: Hashes) -> None:
    """Mix bits in place, by the finalizer of SplitMix64 (Steele, Lea and Flood, 2014)."""
    bits ^= bits >> np.uint64(30)
    bits *= _MIX[0]
    bits ^= bits >> np.uint64(27)
    bits *= _MIX[1]
    bits ^= bits >> np.uint64(31)
