import time

import numpy as np
import pyarrow as pa

from millrace.models.config.dataset_spec import SplitSpec
from millrace.models.data.split import Digest, buckets, hash_rows, row_keys, split_bounds

ROWS = pa.record_batch(
    {
        "a": pa.array([1.0, -0.0, None, 1.0]),
        "s": pa.array(["x", "y", None, "x"]),
        "v": pa.array([[1.0, 2.0], [2.0, 1.0], None, [1.0, 2.0]], pa.list_(pa.float32())),
        "b": pa.array([True, False, None, True]),
    }
)


def test_hashes_are_pinned() -> None:
    """A change here moves rows between the splits of every table there is."""
    assert buckets(pa.array(["1", "2", "a|b", "é"])).to_pylist() == GOLDEN_BUCKETS
    assert row_keys(ROWS, (), hash_rows(ROWS)).to_pylist()[:2] == GOLDEN_KEYS


GOLDEN_BUCKETS = [7802, 4058, 6348, 232]
GOLDEN_KEYS = ["e1aadd4230d0a0091f69e601685e9086", "fe74b07f3e85b04ccdd4169450d22223"]


def test_equal_rows_hash_equally_and_others_do_not() -> None:
    keys = row_keys(ROWS, (), hash_rows(ROWS)).to_pylist()
    assert keys[0] == keys[3]
    assert len(set(keys)) == 3


def test_hashes_do_not_depend_on_batches() -> None:
    whole = hash_rows(ROWS)
    assert np.array_equal(whole[2:], hash_rows(ROWS.slice(2)))


def test_declared_keys_are_joined_without_ambiguity() -> None:
    batch = pa.record_batch({"a": ["x|y", "x"], "b": ["z", "y|z"], "n": [1, 2]})
    assert row_keys(batch, ("n",), hash_rows(batch)).to_pylist() == ["1", "2"]
    joined = row_keys(batch, ("a", "b"), hash_rows(batch)).to_pylist()
    assert joined == ["x\\|y|z", "x|y\\|z"]


def test_a_digest_does_not_depend_on_the_order() -> None:
    forth, back = Digest(), Digest()
    forth.update(hash_rows(ROWS))
    for place in (3, 2, 1, 0):
        back.update(hash_rows(ROWS.slice(place, 1)))
    assert forth.hexdigest() == back.hexdigest()
    forth.update(hash_rows(ROWS.slice(0, 1)))
    assert forth.hexdigest() != back.hexdigest()


def test_splits_share_the_buckets() -> None:
    bounds = split_bounds(SplitSpec(train=0.7, validation=0.1, test=0.2))
    assert bounds == {"test": (0, 2000), "validation": (2000, 3000), "train": (3000, 10_000)}


def test_buckets_are_even() -> None:
    keys = pa.array([str(number) for number in range(100_000)])
    counts = np.bincount(buckets(keys).to_numpy() // 1000)
    assert counts.min() > 9_500
    assert counts.max() < 10_500


def test_half_a_million_keys_take_less_than_two_seconds() -> None:
    batch = pa.record_batch({"a": np.random.default_rng(0).normal(size=500_000)})
    started = time.perf_counter()
    buckets(row_keys(batch, (), hash_rows(batch)))
    assert time.perf_counter() - started < 2
