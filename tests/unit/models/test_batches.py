import time
import weakref
from collections.abc import Iterator

import pyarrow as pa
import pytest
import torch

from millrace.models.common.errors import WorkError
from millrace.models.inference.features import Encoding, Feature
from millrace.models.inference.tokenizer import train_tokenizer
from millrace.models.training import batches as module
from millrace.models.training.batches import (
    ShardBatches,
    choose_batch_size,
    choose_learning_rate,
)

ENCODING = Encoding((Feature("a", "number"),), "t")


class FakeShard:
    """A shard of rows 0, 1, 2, …, each its own target plus a half; remembers its readings."""

    def __init__(self, rows: int) -> None:
        self.table = pa.table({"a": range(rows), "t": [row + 0.5 for row in range(rows)]})
        self.rows = rows
        self.windows: list[int] = []
        self.seeds: list[int | None] = []

    def read(self, rows: int, seed: int | None = None) -> Iterator[pa.Table]:
        self.seeds.append(seed)
        self.windows.append(rows)
        for start in range(0, len(self.table), rows):
            yield self.table.slice(start, rows)


@pytest.fixture(autouse=True)
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shuffle in windows of as few batches as there may be."""
    monkeypatch.setattr(module, "WINDOW_BYTES", 0)


def batches_of(shard: FakeShard, *, seed: int = 0, rank: int = 0, **more: int) -> ShardBatches:
    return ShardBatches(shard, ENCODING, 4, seed, rank, **more)


def order(batches: ShardBatches, epoch: int = 0) -> list[int]:
    return [int(row) for features, _ in batches.epoch(epoch) for row in features[:, 0]]


@pytest.mark.parametrize("cache_bytes", [1000, 0])
@pytest.mark.parametrize("epoch", [0, 1])
def test_every_row_comes_once_in_an_epoch(cache_bytes: int, epoch: int) -> None:
    batches = batches_of(FakeShard(18), cache_bytes=cache_bytes)
    for _ in range(epoch):
        order(batches)
    assert sorted(order(batches, epoch)) == list(range(18))


@pytest.mark.parametrize("promised", [17, 19])
def test_a_shard_with_other_rows_than_it_promised_is_refused(promised: int) -> None:
    shard = FakeShard(18)
    shard.rows = promised
    with pytest.raises(WorkError, match="other rows than it had") as raised:
        order(batches_of(shard))
    assert raised.value.valid == f"{promised} rows, as they were counted"


def test_an_epoch_is_shuffled() -> None:
    assert order(batches_of(FakeShard(100))) != list(range(100))


def test_another_epoch_has_another_order() -> None:
    batches = batches_of(FakeShard(100))
    assert order(batches, 0) != order(batches, 1)


def test_the_same_seed_gives_the_same_order() -> None:
    first, second = (order(batches_of(FakeShard(100), seed=3), epoch=2) for _ in range(2))
    assert first == second


def test_an_epoch_has_the_same_order_whichever_came_before() -> None:
    batches = batches_of(FakeShard(100))
    order(batches, 0)
    assert order(batches, 5) == order(batches_of(FakeShard(100)), 5)


@pytest.mark.parametrize("other", [{"seed": 1}, {"rank": 1}])
def test_another_seed_or_rank_gives_another_order(other: dict[str, int]) -> None:
    assert order(batches_of(FakeShard(100), **other)) != order(batches_of(FakeShard(100)))


def test_rows_that_are_kept_are_in_memory_once(monkeypatch: pytest.MonkeyPatch) -> None:
    alive: list[int] = []
    windows: list[weakref.ref[torch.Tensor]] = []
    encode = ShardBatches._encode

    def counted(batches: ShardBatches, table: pa.Table) -> module.Batch:
        made = encode(batches, table)
        windows.append(weakref.ref(made[0]))
        alive.append(sum(each() is not None for each in windows))
        return made

    monkeypatch.setattr(ShardBatches, "_encode", counted)
    assert sorted(order(batches_of(FakeShard(400)))) == list(range(400))
    assert len(windows) == 25
    assert max(alive) <= 4


def test_rows_keep_their_targets() -> None:
    pairs = list(batches_of(FakeShard(18)).epoch(0))
    for features, target in pairs:
        torch.testing.assert_close(features[:, 0] + 0.5, target)


def test_batches_are_full_but_the_last() -> None:
    assert [len(target) for _, target in batches_of(FakeShard(18)).epoch(0)] == [4, 4, 4, 4, 2]


@pytest.mark.parametrize("cache_bytes", [1000, 0])
def test_a_last_batch_of_one_row_is_left_out(cache_bytes: int) -> None:
    batches = batches_of(FakeShard(9), cache_bytes=cache_bytes)
    assert [len(target) for _, target in batches.epoch(0)] == [4, 4]


@pytest.mark.parametrize("cache_bytes", [1000, 0])
def test_batches_of_one_row_are_all_learnt_from(cache_bytes: int) -> None:
    batches = ShardBatches(FakeShard(5), ENCODING, 1, 0, 0, cache_bytes)
    assert sorted(order(batches)) == list(range(5))


def streamed_seeds(*, epochs: int = 2, **more: int) -> list[int | None]:
    """Return the seeds that a shard is shuffled with, epoch after epoch."""
    shard = FakeShard(18)
    batches = batches_of(shard, cache_bytes=0, **more)
    for epoch in range(epochs):
        order(batches, epoch)
    return shard.seeds


def test_a_streamed_shard_is_shuffled_by_the_seed() -> None:
    assert streamed_seeds(seed=3) == streamed_seeds(seed=3)
    assert None not in streamed_seeds()


def test_a_streamed_shard_is_shuffled_anew_for_every_epoch_seed_and_rank() -> None:
    seeds = streamed_seeds() + streamed_seeds(seed=1) + streamed_seeds(rank=1)
    assert len(set(seeds)) == 6


def test_a_small_shard_is_read_once() -> None:
    shard = FakeShard(18)
    batches = batches_of(shard)
    for epoch in range(3):
        order(batches, epoch)
    assert shard.seeds == [None]


def test_a_large_shard_is_streamed_every_epoch_in_a_shuffled_window() -> None:
    shard = FakeShard(18)
    batches = batches_of(shard, cache_bytes=18 * 4 - 1)
    for epoch in range(3):
        order(batches, epoch)
    assert shard.windows == [16, 16, 16]
    assert None not in shard.seeds


def test_a_shard_of_exactly_the_limit_is_kept() -> None:
    shard = FakeShard(18)
    batches = batches_of(shard, cache_bytes=18 * 4)
    order(batches)
    order(batches, 1)
    assert shard.seeds == [None]


def test_a_shard_of_more_than_one_window_is_kept_whole() -> None:
    assert len(set(order(batches_of(FakeShard(9000))))) == 9000


def test_an_empty_shard_has_no_batches() -> None:
    assert order(batches_of(FakeShard(0))) == []


def test_a_streamed_batch_can_be_learnt_from() -> None:
    features, target = next(iter(batches_of(FakeShard(18), cache_bytes=0).epoch(0)))
    assert (features.dtype, target.dtype) == (torch.float32, torch.float32)
    assert tuple(features.shape) == (4, 1)


def test_epochs_may_be_left_half_way() -> None:
    batches = batches_of(FakeShard(18))
    next(iter(batches.epoch(0)))
    assert sorted(order(batches, 1)) == list(range(18))


TOKENIZER = train_tokenizer(["a"], vocab_size=270, max_tokens=12)
OF_TEXT = Encoding((Feature("a", "text", 12),), "t", tokenizer=TOKENIZER)


def texts_of(rows: int, **more: int) -> ShardBatches:
    """Batches of 4 texts of 1 to 9 letters; a row's number is its target."""
    shard = FakeShard(rows)
    letters = ["a" * (1 + row * 7 % 9) for row in range(rows)]
    shard.table = pa.table({"a": letters, "t": [float(row) for row in range(rows)]})
    return ShardBatches(shard, OF_TEXT, 4, seed=0, rank=0, **more)


@pytest.mark.parametrize("cache_bytes", [100_000, 0])
def test_texts_of_about_a_length_come_together_and_are_filled_up_to_it(cache_bytes: int) -> None:
    batches = list(texts_of(200, cache_bytes=cache_bytes).epoch(0))
    assert sorted(int(row) for _, target in batches for row in target) == list(range(200))
    widths = []
    for features, target in batches:
        lengths = [2 + 1 + int(row) * 7 % 9 for row in target]
        assert features.shape[1] == max(lengths)
        widths += [features.shape[1] - length for length in lengths]
    assert sum(widths) / len(widths) < 0.6  # at random it would be about 3
    lengths_of_batches = [features.shape[1] for features, _ in batches]
    assert lengths_of_batches != sorted(lengths_of_batches)


def test_another_epoch_puts_other_texts_together() -> None:
    batches = texts_of(200)
    first, second = (
        [set(target.tolist()) for _, target in batches.epoch(epoch)] for epoch in (0, 1)
    )
    assert first != second
    assert not all(each in second for each in first)


@pytest.mark.parametrize("cache_bytes", [1000, 0])
def test_batches_in_order_are_the_table(cache_bytes: int) -> None:
    batches = batches_of(FakeShard(18), cache_bytes=cache_bytes)
    for _ in range(2):
        found = list(batches.in_order())
        assert [len(target) for _, target in found] == [4, 4, 4, 4, 2]
        assert torch.cat([features for features, _ in found])[:, 0].tolist() == list(range(18))


def test_the_wait_for_rows_is_counted() -> None:
    class SlowShard(FakeShard):
        def read(self, rows: int, seed: int | None = None) -> Iterator[pa.Table]:
            time.sleep(0.05)
            yield from super().read(rows, seed)

    batches = batches_of(SlowShard(18))
    order(batches)
    first = batches.waited
    order(batches, 1)
    assert first > 0.05
    assert batches.waited == first  # the rows are kept


@pytest.mark.parametrize(
    ("rows", "row_bytes", "size"),
    [
        *((100, 76, 64), (63_999, 76, 64), (64_000, 76, 128), (1_000_000, 76, 1024)),
        *((10**9, 76, 4096), (10**9, 12_288, 64), (10**9, 1024, 1024)),
    ],
)
def test_the_batches_of_a_large_table_are_larger(rows: int, row_bytes: int, size: int) -> None:
    assert choose_batch_size(rows, row_bytes) == size


def test_the_learning_rate_grows_with_the_square_root_of_the_batch_up_to_a_limit() -> None:
    rates = [choose_learning_rate(size) for size in (64, 128, 256, 1024, 4096)]
    assert rates == pytest.approx([0.003, 0.003 * 2**0.5, 0.006, 0.012, 0.012])
