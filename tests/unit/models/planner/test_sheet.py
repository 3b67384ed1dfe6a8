"""The sheet: its cells, what does not fit, and how numbers are written."""

from dataclasses import replace

import pytest

from millrace.models.planner.catalogue import Machines, shipped_devices
from millrace.models.planner.decode_plan import RUNTIME_BYTES
from millrace.models.planner.fit import Estimate
from millrace.models.planner.published_decoders import DECODERS
from millrace.models.planner.quantity import ROWS, Quantity, estimated, format_value
from millrace.models.planner.sheet import STAGES, plan_sheet
from millrace.models.planner.training_column import step_seconds
from millrace.models.planner.work import Generation, ServingWork, TrainingWork, Variant, Work

H100 = shipped_devices()["h100"]
ONE, EIGHT = Machines("h100", H100), Machines("h100", H100, 8)
CPU = Machines("this-machine", H100.model_copy(update={"cores": 2, "price": None, "watts": None}))
TRAINING = TrainingWork(
    workers=2,
    step_units=64,
    steps=1000,
    flops_per_unit=3e9,
    memory={"weights": 4e6, "activations": 60e6},
    bytes_per_step=300e6,
    kernels=50,
    gradient_bytes=4e6,
    data_type="fp32",
    bytes_per_unit=100,
    checkpoint_bytes=12e6,
)
SERVING = ServingWork(
    variants=(Variant("onnx-fp32", "fp32", 4e6),),
    flops_per_unit=1e9,
    bytes_per_unit=1e5,
    kernels=20,
    call_units=64,
    instances=2,
    threads=1,
    input_bytes=80,
    output_bytes=40,
)
ROWS_WORK = Work("m", "rows", 1_000_000, TRAINING, SERVING, SERVING, batch_units=1e6)


def generating(**changed):
    decoder = DECODERS["llama-3.1-8b"]
    generation = Generation(decoder, 32, 4096, 2048, 512, 20 * 2.0**30)
    serving = replace(
        SERVING,
        variants=(Variant("bf16", "bf16", 16e9),),
        generation=replace(generation, **changed),
    )
    return replace(ROWS_WORK, unit="tokens", online=serving, batch=serving)


def find(cell, words):
    return next(each for each in cell if words in each.words)


@pytest.mark.parametrize("work", [ROWS_WORK, generating()], ids=["rows", "tokens"])
def test_every_stage_has_every_row_and_every_number_its_formula(work):
    sheet = plan_sheet(work, ONE)
    for stage in STAGES:
        assert tuple(sheet.cells[stage]) == ROWS
        for row, cell in sheet.cells[stage].items():
            assert cell, (stage, row)
            assert all(each.formula for each in cell), (stage, row)


def test_a_step_is_the_sum_of_its_terms():
    step = step_seconds(TRAINING, ONE, {})
    parts = 64 * 3e9 / 67e12 + 300e6 / 3.35e12 + 50 * 5e-6 + 4e6 / 450e9
    assert step.value == pytest.approx(parts)


def test_workers_of_a_cpu_share_its_cores():
    alone, shared = step_seconds(TRAINING, ONE, {}), step_seconds(TRAINING, CPU, {})
    assert shared.value > 1.7 * alone.value


def test_training_costs_its_time():
    sheet = plan_sheet(ROWS_WORK, EIGHT)
    seconds = find(sheet.cells["training"]["speed"], "in all").value
    assert seconds == pytest.approx(1000 * step_seconds(TRAINING, EIGHT, {}).value)
    (dollars,) = sheet.cells["training"]["cost"]
    assert dollars.value == pytest.approx(seconds / 3600 * 8 * 2.69)


def test_without_a_price_there_is_no_cost():
    assert plan_sheet(ROWS_WORK, CPU).cells["online"]["cost"] == ()


def test_an_unknown_number_of_steps_has_no_total():
    work = replace(ROWS_WORK, training=replace(TRAINING, steps=None))
    assert not any(
        "in all" in each.name for each in plan_sheet(work, ONE).cells["training"]["speed"]
    )


def test_a_reservation_is_paid_while_it_waits():
    cost = plan_sheet(ROWS_WORK, ONE, load_per_second=10.0).cells["online"]["cost"]
    usage, reserved, energy = cost
    rate = plan_sheet(ROWS_WORK, ONE).cells["online"]["speed"][1].value
    assert reserved.value / usage.value == pytest.approx(rate / 10)
    assert energy.value == pytest.approx(700 / rate * 1e6 / 3.6e6)


def test_a_night_is_all_its_rows():
    speed = plan_sheet(ROWS_WORK, ONE).cells["batch"]["speed"]
    rate = next(each.value for each in speed if each.unit == "per second")
    assert find(speed, "/day").value == pytest.approx(86_400 * rate)
    assert find(speed, "nightly job").value == pytest.approx(1e6 / rate)


def test_what_does_not_fit_is_named_with_its_parts():
    sheet = plan_sheet(
        replace(ROWS_WORK, training=replace(TRAINING, memory={"weights": 90e9})), ONE
    )
    assert not sheet.fits
    (fault,) = sheet.faults
    assert (
        str(fault) == "training needs 90.4 GB and there are 85.9 GB: runtime 400 MB + weights 90 GB"
    )


def test_the_cache_decides_how_many_streams_fit():
    cell = plan_sheet(generating(), ONE).cells["online"]["concurrency"]
    assert find(cell, "streams of 4,096").value == 20 * 2**30 // 131_072 // 4096 == 40
    left = H100.memory - 16e9 - RUNTIME_BYTES
    assert find(cell, "in all of the memory").value == left // 131_072 // 4096


def test_streams_beyond_the_cache_wait_and_are_not_sold():
    def rate(streams, cache):
        work = generating(streams=streams, cache_bytes=cache)
        speed = plan_sheet(work, ONE).cells["online"]["speed"]
        return next(each.value for each in speed if each.unit == "per second")

    of_one = 131_072.0 * 4096
    assert rate(64, 8 * of_one) == rate(8, 8 * of_one) < rate(64, 64 * of_one)
    (fault,) = plan_sheet(generating(cache_bytes=0.5 * of_one), ONE).faults
    assert "the KV cache of one sequence of 4,096 tokens needs 537 MB" in str(fault)


def test_devices_share_a_decoder_and_its_cache():
    one = plan_sheet(generating(), EIGHT).cells["online"]
    two = plan_sheet(generating(tensor_parallel=2), EIGHT).cells["online"]
    assert two["memory"][0].value < one["memory"][0].value
    assert two["speed"][0].value < one["speed"][0].value
    # eight replicas of one device, or four of two
    rates = [next(q.value for q in c["speed"] if q.unit == "per second") for c in (one, two)]
    assert rates[0] > rates[1]


def test_a_fitted_time_has_an_interval_and_a_cpus_has_none():
    fitted = plan_sheet(generating(), ONE).cells["online"]["speed"]
    assert fitted[0].low < fitted[0].value < fitted[0].high
    assert fitted[1].low < fitted[1].value < fitted[1].high
    plain = plan_sheet(generating(), CPU).cells["online"]["speed"][0]
    assert "(" not in str(plain)


def test_the_sheet_says_which_rows_an_estimate_is_fitted_on():
    plain = plan_sheet(generating(), ONE).cells["online"]["speed"]
    sparse = generating(decoder=DECODERS["gpt-oss-120b"])
    mixed = plan_sheet(sparse, ONE).cells["online"]["speed"]
    assert "1,047 published rows of decoders without experts" in plain[0].source
    assert "2,303 published rows of decoders with experts and without" in mixed[0].source
    assert "expert layers" in mixed[0].formula
    assert "expert layers" not in plain[0].formula
    for speed in (plain, mixed):
        first = find(speed, "first token")
        assert "1,039 published rows with vLLM" in first.source
        assert first.low < first.value < first.high


def test_more_streams_wait_longer_for_their_first_token():
    times = [
        find(plan_sheet(generating(streams=n), ONE).cells["online"]["speed"], "first token").value
        for n in (1, 32, 256)
    ]
    assert times == sorted(times)


def test_a_longer_prompt_waits_longer_for_its_first_token_on_a_cpu():
    times = [
        find(plan_sheet(generating(prompt_tokens=n), CPU).cells["online"]["speed"], "first token")
        for n in (16, 64, 512)
    ]
    assert times[0].value < times[1].value < times[2].value


def test_each_device_keeps_all_of_a_latent_cache():
    def cells(name, split):
        work = generating(decoder=DECODERS[name], tensor_parallel=split, cache_bytes=8e9)
        return plan_sheet(work, EIGHT).cells["online"]

    def fitting(name, split):
        return find(cells(name, split)["concurrency"], "in the cache").value

    assert "KV cache 1 GB" in cells("deepseek-v3", 8)["memory"][0].formula
    assert fitting("deepseek-v3", 8) == fitting("deepseek-v3", 1) // 8
    assert fitting("llama-3.1-8b", 8) == fitting("llama-3.1-8b", 1)


@pytest.mark.parametrize(
    ("value", "unit", "of", "text"),
    [
        (131_072, "bytes", "", "131 kB"),
        (12.5e9, "bytes per second", "", "12.5 GB/s"),
        (999.9, "bytes", "", "1 kB"),
        (0.0123, "seconds", "", "12.3 ms"),
        (90, "seconds", "", "1.5 min"),
        (1.67e-7, "seconds", "", "167 ns"),
        (0.99999e-6, "seconds", "", "1 µs"),
        (1.2e-10, "seconds", "", "1.2e-10 s"),
        (0, "seconds", "", "0 s"),
        (2.15e25, "operations", "", "21.5 YFLOP"),
        (4.2e9, "operations", "", "4.2 GFLOP"),
        (512, "count", "", "512"),
        (26_150.4, "per second", "rows", "26.2k rows/s"),
        (1e12, "per day", "tokens", "1T tokens/day"),
        (0.462, "share", "", "46.2%"),
        (12.3, "dollars", "", "$12.30"),
        (0.00123, "dollars per million", "", "$0.0012"),
    ],
)
def test_numbers_are_written_for_people(value, unit, of, text):
    assert format_value(value, unit, of) == text


def test_an_interval_is_written_behind_the_value():
    quantity = estimated("a step", Estimate(0.1, 0.05, 0.2), "seconds", "f", "s")
    assert quantity.words == "100 ms (50 ms to 200 ms) a step"
    assert Quantity("", 5, "per second", "f", of="rows").words == "5 rows/s"
