"""The counts of networks that are kept, and counted again where they are damaged."""

import json
from dataclasses import asdict

import pytest

from millrace.models.planner.network_cost import MOST_COUNTS, KeptCounts, NetworkCost

COST = NetworkCost(
    parameters=10,
    trained=10,
    forward_flops=2e3,
    activation_flops=1e3,
    function_elements=64,
    training_flops=6e3,
    saved_bytes=400.0,
    forward_kernels=3,
    training_kernels=9,
    input_bytes=40.0,
)


@pytest.fixture
def kept(tmp_path):
    return KeptCounts(tmp_path)


def test_a_count_is_kept_and_the_oldest_are_dropped(kept):
    for number in range(MOST_COUNTS + 2):
        kept.write(f"key {number}", COST)
    assert kept.read(f"key {MOST_COUNTS + 1}") == COST
    assert kept.read("key 0") is None


@pytest.mark.parametrize("value", [None, "10", True, [1], -1, float("nan"), float("inf")])
def test_a_damaged_count_is_not_known(kept, tmp_path, value):
    kept.write("key", COST)
    file = tmp_path / "network-costs.json"
    file.write_text(json.dumps({"key": asdict(COST) | {"parameters": value}}))
    assert kept.read("key") is None
    kept.write("key", COST)
    assert kept.read("key") == COST


@pytest.mark.parametrize("text", ["", "[]", '{"key": 3}', '{"key": {"parameters": 1}}'])
def test_a_damaged_file_is_written_again(kept, tmp_path, text):
    (tmp_path / "cache").mkdir()
    (tmp_path / "network-costs.json").write_text(text)
    assert kept.read("key") is None
    kept.write("key", COST)
    assert kept.read("key") == COST


def test_without_a_place_nothing_is_kept(kept, tmp_path):
    (tmp_path / "a file").touch()
    nowhere = KeptCounts(tmp_path / "a file")
    nowhere.write("key", COST)
    assert nowhere.read("key") is None
    (tmp_path / "network-costs.json").mkdir()
    kept.write("key", COST)
    assert kept.read("key") is None
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a file", "network-costs.json"]
