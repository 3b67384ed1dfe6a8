"""How rows go through Ray."""

from dataclasses import replace

import pytest

from millrace.serving.batch.block_size import (
    HANDED_LARGEST,
    LARGEST,
    SLOW_LARGEST,
    Blocks,
    Load,
    blocks_of,
    slow_blocks_of,
)

MANY = Load(pieces=160, rows=5_000_000, bytes=10**9, actors=2)


def test_actors_read_for_themselves_where_there_are_pieces_for_all() -> None:
    assert blocks_of(MANY, 1024, 1000, 48).rows_per_call is None


def test_tasks_read_a_few_large_pieces_so_that_all_actors_have_work() -> None:
    blocks = blocks_of(replace(MANY, pieces=1), 1024, 1000, 48)
    assert blocks.rows_per_call == 1024
    assert MANY.bytes / 64 <= blocks.bytes <= HANDED_LARGEST


def test_more_actors_need_more_pieces() -> None:
    assert blocks_of(replace(MANY, actors=64), 1024, 1000, 48).rows_per_call == 1024


def test_a_kill_costs_each_actor_a_small_share_of_what_it_answers() -> None:
    for actors in (1, 2, 8):
        blocks = blocks_of(replace(MANY, actors=actors), 1024, 1000, 48)
        assert blocks.bytes * actors <= 5_000_000 * 48 / 16


def test_a_block_holds_at_least_what_the_model_is_given_at_a_time() -> None:
    wide = 2 * LARGEST
    assert blocks_of(MANY, 1024, wide, 48).bytes == wide
    assert blocks_of(replace(MANY, pieces=1), 1024, 4 * LARGEST, 48).bytes == 4 * LARGEST


def test_a_job_of_unknown_length_goes_by_its_bytes() -> None:
    less, more = (
        blocks_of(replace(MANY, rows=None, bytes=size), 1024, 1, 48) for size in (10**8, 10**12)
    )
    assert less.bytes < more.bytes == LARGEST


@pytest.mark.parametrize(("rows", "actors"), [(512, 2), (600, 2), (20, 2), (5000, 3), (1, 4)])
def test_slow_calls_are_as_many_and_as_large_for_every_actor(rows: int, actors: int) -> None:
    blocks = slow_blocks_of(Load(1, rows, 370 * rows, actors), 256)
    assert blocks.rows_per_call is not None
    assert blocks.rows_per_call <= 256
    calls = -(-rows // blocks.rows_per_call)
    assert calls % actors == 0 or rows < actors
    assert blocks.ahead == 1
    assert blocks.bytes <= max(370 * blocks.rows_per_call / 8, 1024)


def test_slow_rows_of_unknown_number_go_by_what_the_model_is_given() -> None:
    assert slow_blocks_of(Load(1, None, 10**6, 2), 256) == Blocks(SLOW_LARGEST, 256, 1)
