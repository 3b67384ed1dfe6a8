"""The time between two tokens: its terms, and the estimates of rows that are held out."""

from dataclasses import replace
from statistics import median

import pytest

from millrace.models.planner.catalogue import shipped_devices
from millrace.models.planner.published_decoders import DECODERS
from millrace.models.planner.published_serving import (
    HELD_OUT,
    dense_loads,
    estimate_held_out,
    fit_token_time,
)
from millrace.models.planner.published_training import published_fit
from millrace.models.planner.serving_time import ServingLoad, token_terms

H100 = shipped_devices()["h100"]
LOAD = ServingLoad(DECODERS["llama-3.1-8b"], "bf16", 16, 1024, 512)


@pytest.mark.parametrize("by", HELD_OUT)
def test_what_is_held_out_is_estimated_within_the_goal(by):
    found = estimate_held_out(dense_loads(), by)
    assert len(found) == 1047
    assert median(abs(each.error) for each in found) <= 0.15
    assert 0.80 <= sum(each.held for each in found) / len(found) <= 0.98


def test_the_stored_weights_are_those_of_the_published_rows():
    fitted = fit_token_time(dense_loads(), HELD_OUT["model"])
    stored = published_fit("token_time")
    assert fitted.weights == pytest.approx(stored.weights, rel=1e-4, abs=1e-9)
    assert (fitted.low, fitted.high) == pytest.approx((stored.low, stored.high), rel=1e-4)
    assert fitted.region == stored.region


def test_one_stream_reads_every_weight_once():
    decoder = LOAD.decoder
    terms = token_terms(replace(LOAD, streams=1), H100)
    assert terms["weights"] * H100.memory_bandwidth == 2 * decoder.matrix_parameters
    cached = (1024 + 256) * 131_072
    assert terms["cache"] * H100.memory_bandwidth == pytest.approx(cached)


def test_a_step_reads_the_prompts_that_arrive_meanwhile():
    terms = token_terms(LOAD, H100)
    # 16 streams of 512 tokens: a new prompt of 1,024 tokens every 32 steps
    assert terms["prompts"] == pytest.approx(terms["operations"] / 16 * 32)


def test_tensor_parallel_devices_share_the_weights_and_talk():
    alone, four = token_terms(LOAD, H100), token_terms(replace(LOAD, tensor_parallel=4), H100)
    assert alone["all_reduces"] == alone["all_reduce_bytes"] == 0
    assert four["weights"] == pytest.approx(alone["weights"] / 4)
    assert four["all_reduces"] == 64
    sent = 64 * 2 * (16 + 32) * 4096 * 2 * 3 / 4
    assert four["all_reduce_bytes"] == pytest.approx(sent / 450e9)


def test_weights_in_fewer_bits_take_less_time():
    times = [token_terms(replace(LOAD, weights=w), H100)["weights"] for w in ("bf16", "fp8", "fp4")]
    assert times == sorted(times, reverse=True)
