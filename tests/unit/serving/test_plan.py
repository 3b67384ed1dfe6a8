from serving.index import LoadedModel
from serving.plan import Load, Stage, Unload, plan, warm_versions


def ready(name: str, *versions: int) -> list[LoadedModel]:
    return [LoadedModel(name, version, "READY") for version in versions]


def test_first_version_is_staged_then_loaded() -> None:
    assert plan({"m": 1}, {}, []) == (Stage("m", 1), Load("m", 1))


def test_nothing_to_do_gives_no_action() -> None:
    assert plan({"m": 2}, {"m": (1, 2)}, ready("m", 1, 2)) == ()


def test_nothing_is_staged_for_a_version_that_serves_already() -> None:
    assert plan({"m": 2}, {}, ready("m", 2)) == ()


def test_roll_forward_keeps_the_live_version_warm() -> None:
    actions = plan({"m": 3}, {"m": (1, 2, 3)}, ready("m", 1, 2))
    assert actions == (Load("m", 3, keep=(2,), previous=2),)
    assert actions[0].versions == (2, 3)


def test_roll_back_drops_everything_above_the_wanted_version() -> None:
    actions = plan({"m": 2}, {"m": (1, 2, 3)}, ready("m", 2, 3))
    assert actions == (Load("m", 2, keep=(), previous=3),)


def test_roll_back_keeps_a_lower_version_warm() -> None:
    assert warm_versions(2, ready=(1, 2, 3), staged=(1, 2, 3)) == (1,)


def test_a_warm_version_must_be_on_disk() -> None:
    assert warm_versions(3, ready=(1, 2), staged=(1, 3)) == (1,)


def test_a_version_that_is_loading_is_not_live() -> None:
    index = [LoadedModel("m", 2, "LOADING"), *ready("m", 1)]
    assert plan({"m": 2}, {"m": (1, 2)}, index) == (Load("m", 2, keep=(1,), previous=1),)


def test_a_model_without_champion_is_unloaded() -> None:
    assert plan({}, {"m": (1,)}, ready("m", 1)) == (Unload("m", 1),)


def test_a_model_on_disk_that_is_not_loaded_is_left_alone() -> None:
    assert plan({}, {"m": (1,)}, [LoadedModel("m", None, "UNKNOWN")]) == ()


def test_a_model_that_no_release_staged_is_left_alone() -> None:
    assert plan({}, {}, ready("of_others", 1)) == ()


def test_a_model_whose_champion_is_not_ours_is_left_alone() -> None:
    assert plan({}, {"m": (1,)}, ready("m", 1), left_alone={"m"}) == ()


def test_stages_come_before_loads_and_loads_before_unloads() -> None:
    actions = plan({"b": 1, "a": 1}, {"old": (4,)}, ready("old", 4))
    assert actions == (Stage("a", 1), Stage("b", 1), Load("a", 1), Load("b", 1), Unload("old", 4))
