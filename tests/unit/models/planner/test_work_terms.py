"""What the terms of an estimate do when the work or the machine grows."""

from dataclasses import replace

import pytest

from millrace.models.planner.catalogue import Machines
from millrace.models.planner.measurements import fits_of
from millrace.models.planner.published_runs import host_fits, published_fits
from millrace.models.planner.sheet import plan_sheet
from millrace.models.planner.work import Variant
from millrace.models.planner.work_terms import (
    call_terms,
    job_terms,
    latency_terms,
    training_step_terms,
    unit_terms,
)
from tests.unit.models.planner.test_sheet import CPU, ROWS_WORK, TRAINING, find, generating

TWO_CORES = replace(CPU, device=CPU.device.model_copy(update={"cores": 2, "cache": 32e6}))
SERVICE, VARIANT = replace(ROWS_WORK.online, instances=1), ROWS_WORK.online.variants[0]


def variant_of(weight_bytes):
    return Variant("onnx-fp32", "fp32", weight_bytes)


def test_a_worker_of_one_thread_has_one_core():
    def operations(workers, threads):
        training = replace(TRAINING, workers=workers, threads=threads)
        return training_step_terms(training, TWO_CORES)["operations"]

    assert operations(1, 1) == operations(2, 1) == 2 * operations(1, None)
    assert operations(4, 1) == 2 * operations(2, 1)


def test_workers_that_wait_for_a_core_take_longer_for_everything():
    two, eight = (training_step_terms(replace(TRAINING, workers=n), TWO_CORES) for n in (2, 8))
    assert all(
        eight[name] == pytest.approx(4 * two[name])
        for name in ("step", "rows", "kernels", "messages", "operations")
    )


def test_more_instances_than_cores_answer_no_more_rows():
    def seconds(instances):
        service = replace(SERVICE, instances=instances)
        return sum(unit_terms(service, variant_of(1e3), TWO_CORES).values())

    assert seconds(1) > seconds(2) == pytest.approx(seconds(64))


def test_weights_beyond_the_cache_are_read_from_memory_without_a_jump():
    def estimate(weight_bytes):
        terms = call_terms(SERVICE, variant_of(weight_bytes), 1, TWO_CORES)
        return published_fits()["online_call"].estimate(terms).value

    sizes = [1e6 * n for n in range(1, 100)]
    times = [estimate(size) for size in sizes]
    assert times == sorted(times)
    assert all(b - a < 0.25 * times[-1] for a, b in zip(times, times[1:], strict=False))
    full = call_terms(SERVICE, variant_of(64e6), 1, TWO_CORES)
    assert (full["cached"], full["weights"] > 0) == (0.0, True)
    assert call_terms(SERVICE, variant_of(32e6), 1, TWO_CORES)["weights"] == 0.0


def test_products_of_activations_are_not_faster_in_integers():
    def operations(data_type, share):
        service = replace(SERVICE, activation_flops=share * SERVICE.flops_per_unit)
        return call_terms(service, Variant("x", data_type, 1e3), 1, TWO_CORES)["operations"]

    assert operations("int8", 0) < operations("int8", 0.5) < operations("int8", 1)
    assert operations("int8", 1) == operations("fp32", 1) == operations("fp32", 0)


def test_functions_take_the_time_of_a_core():
    def seconds(threads, elements=3.2e6):
        service = replace(SERVICE, function_elements=elements, threads=threads)
        return call_terms(service, VARIANT, 1, TWO_CORES)["functions"]

    assert seconds(1) == pytest.approx(2e5 * TWO_CORES.device.python_seconds)
    assert (seconds(2), seconds(1, 0.0)) == (seconds(1) / 2, 0.0)


def test_a_variant_in_integers_quantizes_its_activations():
    def terms(data_type, engine="onnxruntime"):
        service = replace(SERVICE, engine=engine)
        return call_terms(service, Variant("x", data_type, 1e3), 1, TWO_CORES)

    floats, integers = terms("fp32"), terms("int8")
    assert (floats["quantization"], floats["integer_cached"]) == (0.0, 0.0)
    assert integers["quantization"] == integers["kernels"] > 0
    assert (integers["integer_cached"], integers["cached"]) == (floats["cached"], 0.0)
    assert terms("int8", "openvino")["quantization"] == 0.0


def test_trees_are_walked_at_the_speed_of_a_core_not_of_the_memory():
    service = replace(SERVICE, engine="trees", function_elements=3.2e6, threads=1)
    slow = replace(TWO_CORES, device=TWO_CORES.device.model_copy(update={"memory_bandwidth": 1e9}))
    walks = [call_terms(service, VARIANT, 1, each)["tree_walk"] for each in (TWO_CORES, slow)]
    assert walks[0] == walks[1] == pytest.approx(2e5 * TWO_CORES.device.python_seconds)


def test_a_larger_network_does_not_shorten_a_batch_job():
    def estimate(weight_bytes):
        terms = job_terms(SERVICE, variant_of(weight_bytes), 1e6, 1e5, TWO_CORES)
        return published_fits()["batch_job"].estimate(terms).value

    times = [estimate(1e6 * n) for n in range(1, 100)]
    assert times == sorted(times)


def test_prompts_are_read_too():
    plain = unit_terms(SERVICE, VARIANT, TWO_CORES)
    reading = unit_terms(SERVICE, VARIANT, TWO_CORES, read=15.0)
    assert reading["operations"] == 16 * plain["operations"]
    assert reading["kernels"] == plain["kernels"]
    one, first = (latency_terms(SERVICE, VARIANT, n, TWO_CORES) for n in (0, 99))
    assert first["operations"] == 100 * one["operations"]
    assert first["call"] == 2 * one["call"]


def test_a_decoder_with_longer_prompts_gives_fewer_tokens_on_a_cpu():
    rates = [
        find(plan_sheet(generating(prompt_tokens=n), CPU).cells["online"]["speed"], "tokens/s")
        for n in (64, 512, 4096)
    ]
    assert rates[0].value > rates[1].value > rates[2].value


def test_a_job_on_a_gpu_begins_as_on_a_cpu():
    fits = host_fits()
    assert fits["batch_job"].weights["job"] == published_fits()["batch_job"].weights["job"] > 1
    assert fits["batch_job"].weights["operations"] == 1.0
    assert fits["online_memory"].high == float("inf")
    assert not fits.keys() & published_fits(on_gpu=True).keys()
    assert fits_of([], "NVIDIA H200", on_gpu=True)["batch_job"] == fits["batch_job"]


def test_each_actor_of_a_cpu_is_a_process():
    def memory(actors):
        work = replace(ROWS_WORK, batch=replace(ROWS_WORK.batch, instances=actors))
        return plan_sheet(work, Machines("m", TWO_CORES.device)).cells["batch"]["memory"][0]

    assert memory(8).value == pytest.approx(4 * memory(2).value)
    assert memory(2).name == "of 2 actors"
