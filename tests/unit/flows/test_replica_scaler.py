"""How many replicas the scaler asks for, and the faults of other scalers."""

from collections.abc import Callable
from pathlib import Path

import pytest

from millrace.flows.triggers.replica_scaler import EVERY, NO_PROFILE, ReplicaScaler
from millrace.models.common.errors import TransientError
from millrace.models.config.replicas_spec import ReplicasSpec
from millrace.serving.profile.scaler import DOWN_SECONDS, HAND_SECONDS
from millrace.serving.replicas import files
from millrace.serving.replicas.files import Fleet, RunningReplica, Wanted
from millrace.serving.replicas.load import Capacity, Load, Traffic, mix_load

SPEC = ReplicasSpec(min=1, max=3)


class Home:
    """A supervisor that follows, a load, and a clock."""

    def __init__(self, run: Path, spec: ReplicasSpec = SPEC) -> None:
        self.run, self.spec, self.now, self.rate = run, spec, 0.0, 0.0
        self.measure: Callable[[Fleet], Load | None] = self.loaded
        self.scaler = ReplicaScaler(run, spec, lambda f: self.measure(f), lambda: self.now)
        self.follow()

    def loaded(self, fleet: Fleet) -> Load | None:
        traffic = None if self.rate is None else {"m": Traffic(self.rate, 1.0)}
        return mix_load(self.spec, [Capacity("m", 100.0, 50.0)], traffic)

    def follow(self) -> int:
        wanted = files.read_wanted(self.run)
        number = wanted.replicas if wanted else self.spec.min
        replicas = tuple(RunningReplica(n, 10 + n, "serving") for n in range(1, number + 1))
        files.write_fleet(self.run, Fleet(8001, number, replicas))
        return number

    def look(self) -> Wanted:
        self.now += EVERY
        self.scaler.check()
        self.follow()
        wanted = files.read_wanted(self.run)
        assert wanted is not None
        return wanted

    def run_for(self, seconds: float, rate: float | None) -> list[int]:
        self.rate = rate
        return [self.look().replicas for _ in range(int(seconds / EVERY))]


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def test_one_to_three_and_back(home: Home) -> None:
    assert home.run_for(60, 230.0)[-1] == 3
    assert home.look().reason == "enough"
    assert home.run_for(3 * DOWN_SECONDS, 0.0)[-1] == 1


def test_a_constant_load_changes_nothing_in_ten_minutes(home: Home) -> None:
    first = home.run_for(60, 120.0)
    assert first[-1] == 2
    assert set(home.run_for(600, 120.0)) == {2}


def test_without_a_profile_it_stays_at_the_fewest_and_says_why(home: Home) -> None:
    home.measure = lambda fleet: None
    assert home.look() == Wanted(1, NO_PROFILE)


def test_missing_metrics_change_nothing(home: Home) -> None:
    assert home.run_for(60, 150.0)[-1] == 2
    assert set(home.run_for(3600, None)) == {2}
    assert home.look().reason == "the rate is not known"


def test_a_look_that_fails_changes_nothing(home: Home) -> None:
    assert home.run_for(60, 150.0)[-1] == 2

    def fails(fleet: Fleet) -> Load | None:
        raise TransientError("MLflow is away")

    home.measure = fails
    assert home.look().replicas == 2


def test_a_number_that_was_set_by_hand_is_kept_for_a_while(home: Home) -> None:
    home.run_for(60, 10.0)
    files.write_wanted(home.run, Wanted(3, "by hand"))
    home.follow()
    assert set(home.run_for(HAND_SECONDS - EVERY, 10.0)) == {3}
    assert home.look().replicas == 3
    assert home.run_for(3 * DOWN_SECONDS, 10.0)[-1] == 1


@pytest.mark.parametrize("nonsense", [b"x", b"\xff\xfe", None])
def test_nonsense_in_place_of_the_number_is_no_hand(home: Home, nonsense: bytes | None) -> None:
    home.run_for(60, 230.0)
    file = home.run / "replicas.wanted.json"
    if nonsense is None:
        file.unlink()
    else:
        file.write_bytes(nonsense)
    home.follow()  # with another number, as a supervisor that has started anew meanwhile
    assert home.look() == Wanted(3, "enough")
    assert home.run_for(3 * DOWN_SECONDS, 10.0)[-1] == 1


def test_a_folder_in_place_of_the_number_is_named_once_and_ends_nothing(
    home: Home, caplog: pytest.LogCaptureFixture
) -> None:
    home.run_for(60, 230.0)
    file = home.run / "replicas.wanted.json"
    file.unlink()
    file.mkdir()
    for _ in range(3):
        assert home.scaler.check() == EVERY
    assert caplog.text.count("replicas.wanted.json is a folder") == 1
    file.rmdir()
    assert home.look().replicas == 3


def test_a_supervisor_that_is_slow_to_follow_is_no_hand(home: Home) -> None:
    home.rate = 230.0
    home.follow = lambda: 1  # type: ignore[method-assign]
    assert [home.look().replicas for _ in range(4)] == [3, 3, 3, 3]
    assert home.look().reason == "enough"


def test_a_dry_run_only_says_what_it_would_do(tmp_path: Path) -> None:
    home = Home(tmp_path, ReplicasSpec(min=1, max=3, dry_run=True))
    assert set(home.run_for(120, 230.0)) == {1}
    found = home.look()
    assert (found.replicas, found.needed) == (1, 3)
    assert "need 3" in found.reason


def test_without_replicas_nothing_is_decided(tmp_path: Path) -> None:
    scaler = ReplicaScaler(tmp_path, SPEC, lambda fleet: None)
    assert scaler.check() == EVERY
    assert files.read_wanted(tmp_path) is None
