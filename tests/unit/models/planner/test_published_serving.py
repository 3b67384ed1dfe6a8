"""The published rows of served decoders, and the sizes of the decoders in them."""

import pytest

from millrace.models.planner.catalogue import shipped_devices
from millrace.models.planner.published_decoders import DECODERS
from millrace.models.planner.published_serving import HELD_OUT, dense_loads, expert_loads

# Billions, in all and for a token, of 2412.19437 (DeepSeek-V3), 2507.20534 (Kimi K2), 2505.09388
# (Qwen3), 2508.10925 (gpt-oss) and the model card of MiniMax-M2.5.
PUBLISHED = {
    "deepseek-v3": (671, 37),
    "kimi-k2.5": (1040, 32.6),
    "qwen3-235b-a22b": (235, 22),
    "gpt-oss-120b": (116.83, 5.13),
    "minimax-m2.5": (229, 10),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_sizes_are_those_that_are_published(name):
    total, active = PUBLISHED[name]
    decoder = DECODERS[name]
    assert decoder.parameters / 1e9 == pytest.approx(total, rel=0.015)
    assert decoder.matrix_parameters / 1e9 == pytest.approx(active, rel=0.05)


def test_experts_and_others_are_apart():
    dense, experts = dense_loads(), expert_loads()
    assert (len(dense), len(experts)) == (1047, 1256)
    assert all(row.load.decoder.experts is None for row in dense)
    assert {row.model for row in experts} == set(PUBLISHED)


@pytest.mark.parametrize("by", HELD_OUT)
def test_each_part_that_is_held_out_has_a_name(by):
    held = {HELD_OUT[by](row) for row in expert_loads()}
    assert held <= {*PUBLISHED, *shipped_devices()}
    assert len(held) == 5
