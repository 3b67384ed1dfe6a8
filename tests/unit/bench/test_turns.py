import os
from pathlib import Path

import pytest
from prefect import Task

from bench.overhead import STEPS, seconds_beyond
from bench.stamped import StampedPerceptron, Turns
from bench.training import turn_times


def turns(folder: Path, *, leads: bool) -> Turns:
    side, other = ("a", "b") if leads else ("b", "a")
    return Turns(str(folder), side, other, leads, workers=1, epochs=2, turns=2)


def stamps(folder: Path, side: str) -> list[list[float]]:
    lines = (folder / f"{side}.{os.getpid()}.stamps").read_text().splitlines()
    return [[float(word) for word in line.split()] for line in lines]


def test_the_first_beginning_is_the_networks_making(tmp_path: Path) -> None:
    leading = turns(tmp_path, leads=True)
    leading.begin_epoch()
    assert not list(tmp_path.iterdir())


def test_the_leading_side_begins_at_once(tmp_path: Path) -> None:
    leading = turns(tmp_path, leads=True)
    for _ in range(3):
        leading.begin_epoch()
    assert len(stamps(tmp_path, "a")) == 2


def test_a_side_that_does_not_get_its_turn_gives_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bench.stamped._DEADLINE_SECONDS", 0.0)
    following = turns(tmp_path, leads=False)
    following.begin_epoch()
    with pytest.raises(TimeoutError, match="a did not finish its turn 0"):
        following.begin_epoch()


def test_a_side_goes_on_when_the_other_has_finished_its_turn(tmp_path: Path) -> None:
    following = turns(tmp_path, leads=False)
    following.begin_epoch()
    (tmp_path / "a-0-1").touch()
    following.begin_epoch()
    assert len(stamps(tmp_path, "b")) == 1


def test_a_network_without_turns_leaves_nothing(tmp_path: Path) -> None:
    network = StampedPerceptron(in_features=4, num_classes=2, width=8, layers=1)
    assert network.train() is network
    assert not list(tmp_path.iterdir())


def test_a_turns_time_leaves_out_its_first_epoch_and_the_wait_before_it() -> None:
    # Two turns of two epochs: (came, went on); the wait of 10 before the second turn is no one's.
    process = [(0.0, 0.0), (5.0, 5.0), (6.0, 16.0), (21.0, 21.0), (23.0, 23.0)]
    assert turn_times([process], turns=2, epochs=2) == [1.0, 2.0]


def test_an_epoch_is_as_long_as_its_slowest_process_took() -> None:
    fast = [(0.0, 0.0), (5.0, 5.0), (6.0, 6.0)]
    slow = [(0.0, 0.0), (5.0, 5.0), (8.0, 8.0)]
    assert turn_times([fast, slow], turns=1, epochs=2) == [3.0]


def test_beyond_the_work_is_what_no_step_of_it_took() -> None:
    seconds = {"ingest_dataset": 1.0, "train_on_ray": 8.0, "export_candidates": 2.0}
    assert seconds_beyond({**seconds, "register_version": 0.5, "rest": 0.25}) == 0.75


def test_the_steps_that_are_timed_are_those_of_the_flow() -> None:
    from millrace.flows import train_model

    tasks = {name: each for name, each in vars(train_model).items() if isinstance(each, Task)}
    assert set(STEPS) == tasks.keys()
