import numpy as np
import pytest

from millrace.models.language.optimizers import rate_at
from millrace.models.language.sequence_order import Course, Position, epoch_order, share_of


def course(**changes: object) -> Course:
    given = {"sequences": 23, "global_batch": 4, "epochs": 2, "max_steps": None, "seed": 3}
    return Course(**{**given, **changes})  # type: ignore[arg-type]


def seen(course: Course, place: Position = Position()) -> list[int]:  # noqa: B008
    return [int(p) for step in course.remaining(place) for p in step.positions]


def test_every_sequence_is_seen_once_in_every_epoch() -> None:
    positions = seen(course())
    assert sorted(positions[:23]) == sorted(positions[23:]) == list(range(23))
    assert positions[:23] != positions[23:]


def test_the_order_is_the_seeds() -> None:
    assert np.array_equal(epoch_order(50, 1, 0), epoch_order(50, 1, 0))
    assert not np.array_equal(epoch_order(50, 1, 0), epoch_order(50, 2, 0))


@pytest.mark.parametrize("stop", range(13))
def test_a_run_goes_on_where_it_stopped(stop: int) -> None:
    steps = list(course().remaining(Position()))
    place = steps[stop - 1].after if stop else Position()
    assert [s.positions.tolist() for s in course().remaining(place)] == [
        s.positions.tolist() for s in steps[stop:]
    ]


def test_another_number_of_workers_goes_on_with_the_rest() -> None:
    before = list(course(global_batch=4).remaining(Position()))[:3]
    after = seen(course(global_batch=10), before[-1].after)
    assert [int(p) for step in before for p in step.positions] + after == seen(course())


def test_max_steps_ends_a_run_in_the_middle_of_an_epoch() -> None:
    steps = list(course(max_steps=8).remaining(Position()))
    assert len(steps) == 8 == course(max_steps=8).steps
    assert [step.ends_run for step in steps] == [False] * 7 + [True]
    assert [step.ends_epoch for step in steps].index(True) == 5
    assert course(max_steps=100).steps == 12


def test_progress_rises_from_above_zero_to_below_one() -> None:
    progress = [step.progress for step in course().remaining(Position())]
    assert progress == sorted(progress)
    assert 0 < progress[0] < 0.1
    assert 0.9 < progress[-1] < 1


def test_two_workers_take_what_one_takes_in_two_micro_steps() -> None:
    positions = np.arange(8)
    one = share_of(positions, 4, 2, 0, 1)
    two = [share_of(positions, 4, 1, rank, 2)[0] for rank in range(2)]
    assert [each.tolist() for each in one] == [each.tolist() for each in two]


def test_every_worker_makes_as_many_micro_steps_of_a_short_step() -> None:
    shares = [share_of(np.arange(5), 2, 3, rank, 2) for rank in range(2)]
    assert [[len(each) for each in share] for share in shares] == [[2, 1], [2, 0]]


def test_the_rate_rises_and_falls() -> None:
    rates = [rate_at(each / 100, 1e-3, 0.1) for each in range(101)]
    assert rates[0] == 0
    assert max(rates) == rates[10] == pytest.approx(1e-3)
    assert rates[5] == pytest.approx(5e-4)
    assert rates[55] == pytest.approx(5e-4)
    assert rates[100] == pytest.approx(0, abs=1e-12)
    assert rate_at(0.0, 1e-3, 0.0) == pytest.approx(1e-3)
