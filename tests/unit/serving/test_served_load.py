"""What a server did between two looks at its metrics."""

import pytest

from millrace.models.common.errors import TransientError
from millrace.models.common.installation import Endpoint
from millrace.serving.triton.served_load import (
    Change,
    Look,
    model_loads,
    parse,
    quantile_of,
    read_metrics,
    way_loads,
)
from tests.integration.ports import free_endpoint

TRITON = """
# TYPE nv_inference_request_success counter
nv_inference_request_success{{model="a",version="1"}} {done}
# TYPE nv_inference_request_failure counter
nv_inference_request_failure{{model="a",reason="OTHER",version="1"}} {failed}
nv_inference_request_failure{{model="a",reason="CANCELED",version="1"}} {failed}
# TYPE nv_inference_count counter
nv_inference_count{{model="a",version="1"}} {rows}
# TYPE nv_inference_exec_count counter
nv_inference_exec_count{{model="a",version="1"}} {batches}
# TYPE nv_inference_queue_duration_us counter
nv_inference_queue_duration_us{{model="a",version="1"}} {queue}
"""
GUARD = """
# TYPE envoy_cluster_grpc_0 counter
envoy_cluster_grpc_0{{envoy_grpc_bridge_method="ModelInfer"}} {good}
# TYPE envoy_cluster_grpc_total counter
envoy_cluster_grpc_total{{envoy_grpc_bridge_method="ModelInfer"}} {total}
# TYPE envoy_cluster_grpc_upstream_rq_time histogram
envoy_cluster_grpc_upstream_rq_time_bucket{{envoy_grpc_bridge_method="ModelInfer",le="1"}} {fast}
envoy_cluster_grpc_upstream_rq_time_bucket{{envoy_grpc_bridge_method="ModelInfer",le="2"}} {total}
envoy_cluster_grpc_upstream_rq_time_bucket{{envoy_grpc_bridge_method="ModelInfer",le="+Inf"}} {total}
envoy_cluster_grpc_upstream_rq_time_sum{{envoy_grpc_bridge_method="ModelInfer"}} 9
envoy_cluster_grpc_upstream_rq_time_count{{envoy_grpc_bridge_method="ModelInfer"}} {total}
"""  # noqa: E501
STREAMS = """
# TYPE nv_inference_request_success counter
nv_inference_request_success{{model="lm",version="2"}} {done}
# TYPE millrace_lm_output_tokens_total counter
millrace_lm_output_tokens_total{{instance="{instance}",model="lm",version="2"}} {tokens}
# TYPE millrace_lm_time_to_first_token_us histogram
millrace_lm_time_to_first_token_us_bucket{{instance="{instance}",model="lm",version="2",le="1000"}} 0
millrace_lm_time_to_first_token_us_bucket{{instance="{instance}",model="lm",version="2",le="2000"}} {done}
millrace_lm_time_to_first_token_us_bucket{{instance="{instance}",model="lm",version="2",le="+Inf"}} {done}
millrace_lm_time_to_first_token_us_sum{{instance="{instance}",model="lm",version="2"}} 1
millrace_lm_time_to_first_token_us_count{{instance="{instance}",model="lm",version="2"}} {done}
"""  # noqa: E501


def change(before: str, after: str, seconds: float = 2.0) -> Change:
    return Change(Look(10.0, parse(before)), Look(10.0 + seconds, parse(after)))


def triton(done: int, failed: int = 0, rows: int = 0, batches: int = 0, queue: int = 0) -> str:
    return TRITON.format(done=done, failed=failed, rows=rows, batches=batches, queue=queue)


def guard(total: int, good: int, fast: int) -> str:
    return GUARD.format(total=total, good=good, fast=fast)


def test_rates_batches_and_times_are_of_the_time_between() -> None:
    found = change(triton(100, 1, 500, 90, 7_000), triton(140, 2, 660, 130, 47_000))
    (load,) = model_loads(found)
    assert (load.model, load.version) == ("a", "1")
    assert load.requests_per_second == 20
    assert load.failed_per_second == 1
    assert load.rows_per_batch == 4
    assert load.queue_ms == pytest.approx(1.0)
    assert (load.compute_ms, load.tokens_per_minute, load.ttft_p99_ms) == (None, None, None)
    assert way_loads(found) == []


def test_nothing_between_two_looks_is_no_division_by_zero() -> None:
    (load,) = model_loads(change(triton(100, 1, 500, 90), triton(100, 1, 500, 90)))
    assert (load.requests_per_second, load.rows_per_batch, load.queue_ms) == (0, None, None)


def test_a_server_that_was_started_anew_counts_from_zero() -> None:
    (load,) = model_loads(change(triton(100, 1, 500, 90), triton(10, 0, 20, 5)))
    assert load.requests_per_second == 5
    assert load.rows_per_batch == 4


def test_what_clients_saw_is_of_the_guard() -> None:
    (way,) = way_loads(change(guard(100, 100, 50), guard(200, 190, 130)))
    assert way.way == "gRPC"
    assert way.requests_per_second == 50
    assert way.refused_per_second == 5
    assert way.p50_ms == pytest.approx(50 / 80)
    assert way.p99_ms == pytest.approx(1 + 19 / 20)


def test_tokens_and_times_of_streams_are_of_all_instances() -> None:
    first = STREAMS.format(done=10, instance="x", tokens=100)
    newer = STREAMS.format(done=30, instance="y", tokens=60)
    (load,) = model_loads(change(first, newer, seconds=1))
    assert load.tokens_per_minute == 3600
    assert load.ttft_p99_ms == pytest.approx(1.99)
    assert load.tpot_p99_ms is None


@pytest.mark.parametrize(
    ("buckets", "expected"),
    [
        ({}, None),
        ({1.0: 0.0, float("inf"): 0.0}, None),
        ({1.0: 10.0, 2.0: 10.0, float("inf"): 10.0}, 0.5),
        ({1.0: 0.0, 2.0: 0.0, float("inf"): 10.0}, 2.0),
    ],
)
def test_a_quantile_is_inside_its_bucket(
    buckets: dict[float, float], expected: float | None
) -> None:
    assert quantile_of(buckets, 0.5) == expected


def test_a_server_that_is_not_there_is_an_error_with_a_next_step() -> None:
    endpoint: Endpoint = free_endpoint()
    with pytest.raises(TransientError, match="metrics cannot be read"):
        read_metrics(endpoint)
