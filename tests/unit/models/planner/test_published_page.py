"""Each number in the table of docs/planner.md, computed."""

import re
from collections import defaultdict
from pathlib import Path
from statistics import median

import pytest

from millrace.models.planner.catalogue import shipped_devices
from millrace.models.planner.published_serving import (
    SERVED_TIMES,
    dense_loads,
    estimate_held_out,
    expert_loads,
)
from millrace.models.planner.published_training import (
    gpt_decoder,
    megatron_mlsys23,
    megatron_sc21,
    published_fit,
)
from millrace.models.planner.serving_memory import weight_bytes
from millrace.models.planner.training_flops import (
    flops_per_token,
    flops_utilization,
    hardware_flops,
    training_days,
)
from tests.unit.models.planner.test_published_formulas import DEEPSEEK_V3, LLAMA_3_405B, llama

PAGE = (Path(__file__).parents[4] / "docs/planner.md").read_text()
PLAIN = " ".join(PAGE.split())
A100, H100 = (shipped_devices()[name].rate("bf16") for name in ("a100", "h100"))
LLAMA_2_7B = llama(32, 4096, 32, 32, 11_008, 32_000)
LLAMA_3_8B = llama(32, 4096, 32, 8, 14_336)


def row(beginning):
    """Return what the formulas give, by the page, for the figure that begins like this."""
    (found,) = (line for line in PAGE.splitlines() if line.startswith(f"| {beginning}"))
    return found.split("|")[2].strip()


def six(parameters, tokens):
    return f"{6 * parameters * tokens:.2e}".replace("e+", "e")


def test_the_operations_of_whole_trainings():
    assert row("GPT-3 175B took") == f"6ND = {six(175e9, 300e9)}"
    assert row("Llama 3 405B took") == f"6ND = {six(LLAMA_3_405B.parameters, 15.6e12)}"
    assert row('"1T tokens of Llama 3') == f"6ND = {six(LLAMA_3_405B.parameters, 1e12)}"


def test_the_days_of_megatrons_trainings():
    days = training_days(175e9, 300e9, 1024, 140e12), training_days(1e12, 450e9, 3072, 163e12)
    assert row("175B on 1,024") == f"8TP/nX = {days[0]:.1f} days"
    assert row("1T on 3,072") == f"8TP/nX = {days[1]:.1f} days"


def test_the_steps_of_mt_nlg():
    operations = hardware_flops(gpt_decoder(105, 20_480, 128), 1920, 2048, "full")
    runs = ((2240, 126e12), (2800, 121e12), (3360, 113e12))
    one, two, three = (operations / (devices * rate) for devices, rate in runs)
    assert row("MT-NLG 530B") == f"{one:.2f}, {two:.2f} and {three:.2f} s"


def test_the_shares_of_the_peak():
    palm = flops_per_token(540.35e9, 0, 118 * 48 * 256, 2048)
    assert row("PaLM 540B") == f"{100 * flops_utilization(238.3e3 * palm, 1, 275e12, 6144):.1f}%"
    assert row("Llama 3 405B, 8,192") == f"{100 * 430e12 / H100:.1f}%"
    stated = f"{100 * 400e12 / H100:.1f}%; 41% is {0.41 * H100 / 1e12:.0f} TFLOP/s"
    assert row("Llama 3 405B, 16,384") == stated


def test_the_speed_of_megascale():
    of_a_token = flops_per_token(175e9, 0, 96 * 12_288, 2048)
    speed = 0.552 * A100 * 12_288 / of_a_token
    days = 300e9 / speed / 86_400
    assert row("MegaScale") == f"{speed / 1e6:.2f}M tokens/s; 300B tokens in {days:.2f} days"


def test_the_figures_of_gpt_4():
    long, short = (2.15e25 / (25_000 * A100 * mfu) / 86_400 for mfu in (0.32, 0.36))
    assert row("GPT-4 took") == f"{short:.1f} days at 36%, {long:.1f} days at 32%"
    assert row('"a token of GPT-4') == f"2N = {2 * 280e9 / 1e9:.0f} GFLOPs"


def test_the_bytes_of_weights():
    seven = [weight_bytes(7e9, each) / 1e9 for each in ("fp16", "int8", "int4")]
    assert row("Llama 7B takes") == f"{seven[0]:g}, {seven[1]:g}, {seven[2]:g} GB of weights"
    seventy = [weight_bytes(70e9, each) / 1e9 for each in ("fp16", "int4")]
    assert row("Llama 70B takes") == f"{seventy[0]:g}, {seventy[1]:g} GB of weights"


def test_the_bytes_of_the_cache():
    two, three = LLAMA_2_7B.kv_bytes_per_token(), LLAMA_3_8B.kv_bytes_per_token()
    assert row('"half a megabyte') == f"{two:,.0f} B; of Llama-3 8B {three:,.0f} B"
    latent, grouped = DEEPSEEK_V3.kv_bytes_per_token(), LLAMA_3_405B.kv_bytes_per_token()
    stated = f"{latent:,.0f} B, against {grouped:,.0f} B of Llama-3 405B"
    assert row("DeepSeek-V3 keeps") == stated


def test_the_times_of_the_same_layout_in_both_papers():
    before, after = megatron_sc21()[-1], megatron_mlsys23()[3]
    assert before.step.decoder == after.step.decoder
    assert before.step.batch / before.step.layout.data_parallel == after.step.batch == 512
    assert f"takes {before.seconds:.1f} s in the first and {after.seconds:.1f} s in the" in PLAIN


TIMES = {
    "token_time": "between two tokens",
    "expert_token_time": "between two tokens, with experts",
    "first_token_time": "to the first token, vLLM",
}
ENGINES = {"trtllm": "TensorRT-LLM", "vllm": "vLLM", "sglang": "SGLang"}


def state(found):
    """Return the rows, the median error and the share in the interval, as the page writes them."""
    errors = sorted(abs(each.error) for each in found)
    held = sum(each.held for each in found) / len(found)
    return f"{len(found):,} | {100 * errors[len(errors) // 2]:.1f}% | {100 * held:.1f}% |"


@pytest.mark.parametrize("name", TIMES)
def test_the_errors_of_what_is_held_out(name):
    for by in ("model", "device"):
        found = estimate_held_out(name, by)
        assert f"| {TIMES[name]} | each {by} | {state(found)}" in PAGE
    models = {each.row.model for each in estimate_held_out(name, "model")}
    for model in models:
        found = [each for each in estimate_held_out(name, "model") if each.row.model == model]
        assert f"| {TIMES[name]} | {model} | {state(found)}" in PAGE


def state_group(group):
    """Return a line of the table of groups, without its time."""
    row, errors = group[0].row, sorted(each.error for each in group)
    middle = errors[len(errors) // 2]
    held = round(100 * sum(each.held for each in group) / len(group))
    device, engine = row.device.upper(), ENGINES[row.engine]
    way = "long" if middle > 0 else "short"
    what = f"{row.model} in {row.load.weights} on {device} with {engine}"
    return f"{what} | {len(group)} | {round(100 * abs(middle))}% too {way} | {held}% |"


@pytest.mark.parametrize("name", TIMES)
def test_the_groups_that_are_furthest_off(name):
    groups = defaultdict(list)
    for each in estimate_held_out(name, "model"):
        row = each.row
        groups[row.model, row.load.weights, row.device, row.engine].append(each)
    furthest = sorted(
        (group for group in groups.values() if len(group) >= 10),
        key=lambda group: -abs(sorted(each.error for each in group)[len(group) // 2]),
    )
    stated = re.findall(rf"^\| {TIMES[name]} \| (\S+ in .*)$", PAGE, re.M)
    assert len(stated) >= 3
    assert stated == [state_group(group) for group in furthest[: len(stated)]]


def test_the_weights_of_others_on_decoders_with_experts():
    fit, time = published_fit("token_time"), SERVED_TIMES["token_time"]
    errors = [fit.estimate(time.terms_of(row)).value / row.tpot - 1 for row in expert_loads()]
    assert f"{100 * median(map(abs, errors)):.0f}% off, most of it too short" in PLAIN
    assert median(errors) < -0.15


def test_the_first_tokens_of_engines():
    times = defaultdict(lambda: defaultdict(list))
    for row in dense_loads() + expert_loads():
        times[row.model, row.device, row.load][row.engine].append(row.ttft)
    slower = [
        max(map(max, engines.values())) / min(map(min, engines.values()))
        for engines in times.values()
        if len(engines) > 1
    ]
    assert f"the slowest engine takes {median(slower):.1f} times" in PLAIN


def test_every_device_of_the_catalogue_is_named():
    for name in shipped_devices():
        assert f"`{name}`" in PAGE
