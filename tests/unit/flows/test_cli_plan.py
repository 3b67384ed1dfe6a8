"""`millrace plan`: each example, several machines, and what it refuses."""

import json
import re
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from millrace.flows.cli import main
from millrace.models.common.errors import InputError
from millrace.models.planner import this_machine
from millrace.models.planner.catalogue import shipped_devices
from millrace.models.planner.measurements import append_measurements
from millrace.models.planner.published_runs import published_fits
from tests.docs_pages import ROOT
from tests.unit.models.planner.test_measurements import FIRST

EXAMPLES = ROOT / "examples"
DEVICE = """\
ours:
  label: Ours
  memory: 8e9
  memory_bandwidth: 1e11
  rates: {fp32: 1e12}
  source: measured
"""


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    folder = tmp_path / "home"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("MILLRACE_HOME", str(folder))
    monkeypatch.setattr(this_machine, "MOST_CYCLES", 1)
    return folder


def plan(*words):
    return CliRunner().invoke(main.make_app(("plan", "check")), ["plan", *map(str, words)])


def sheets(*words):
    done = plan(*words, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)["sheets"]


@pytest.mark.parametrize("name", ["tabular", "digits", "text", "code_lm"])
def test_every_example_has_a_sheet(name):
    done = plan(EXAMPLES / f"{name}.yaml", "--hardware", "h100")
    assert done.exit_code == 0, done.output
    for word in (
        "memory",
        "compute",
        "speed",
        "concurrency",
        "cost",
        "training",
        "online",
        "batch",
    ):
        assert word in done.stdout


def test_a_sheet_is_data_too():
    (sheet,) = sheets(EXAMPLES / "tabular.yaml", "--hardware", "l4")
    parts = sheet["cells"]["training"]["memory"][0]
    # Two hidden layers of 64 and 32 on 30 numbers: 4,130 parameters, of which the weights and their
    # copy in 16 bits, and the optimizer's two numbers are kept.
    counted = 4130 * (4 + 2 + 8)
    weight = published_fits(on_gpu=True)["training_memory"].weights["states"]
    assert f"weights and optimizer {weight * counted / 1000:.1f} kB" in parts["formula"]
    assert sheet["machines"]["name"] == "l4"
    assert sheet["faults"] == []


def test_machines_are_compared_in_their_order():
    found = sheets(EXAMPLES / "code_lm.yaml", "--hardware", "h100x8,l4")
    names = [(each["machines"]["name"], each["machines"]["count"]) for each in found]
    assert names == [("h100", 8), ("l4", 1)]


def test_every_number_can_be_explained():
    done = plan(EXAMPLES / "code_lm.yaml", "--hardware", "h100", "--explain")
    assert "training, memory:" in done.stdout
    assert "    = weights " in done.stdout
    assert "fitted on 1,047 published rows" in done.stdout


FSDP = ("--set", "training.parallel=fsdp", "--set", "training.optimizer=adamw")


def test_workers_and_their_memory_are_those_of_the_machines():
    big = ("hidden_size=2048", "intermediate_size=8192", "num_hidden_layers=16")
    words = [w for each in big for w in ("--set", f"model.params.{each}")]
    found = sheets(EXAMPLES / "code_lm.yaml", "--hardware", "h100,h100x8", *FSDP, *words)
    one, eight = (each["cells"]["training"] for each in found)
    assert [each["concurrency"][0]["value"] for each in (one, eight)] == [1, 8]
    assert eight["memory"][0]["value"] < one["memory"][0]["value"] / 4
    # max_steps is what the file says, on however many workers
    assert all("1,900 steps" in each["speed"][2]["formula"] for each in (one, eight))


def test_more_gpus_answer_more_rows():
    found = sheets(EXAMPLES / "tabular.yaml", "--hardware", "h100,h100x8")
    one, eight = (each["cells"]["online"] for each in found)
    assert eight["speed"][1]["value"] == pytest.approx(8 * one["speed"][1]["value"])
    assert eight["memory"] == one["memory"]


@pytest.mark.parametrize(
    ("variant", "width"),
    [("vllm-bf16", 2), ("vllm-w8a8", 1), ("vllm-awq", 0.5), ("vllm-gptq", 0.5)],
)
def test_a_variant_has_the_data_type_of_its_method(variant, width):
    words = ("--hardware", "h100", "--set", f"export.candidates=[{variant}]")
    (sheet,) = sheets(EXAMPLES / "code_lm.yaml", *words)
    assert sheet["cells"]["online"]["data types"][0]["value"] == width


def test_trees_are_bounded_by_their_rows(home):
    file = home / "trees.yaml"
    file.write_text(
        "name: trees\ndataset: {source: 'sklearn:breast_cancer', target: target}\n"
        "model: {family: gradient_boosting, params: {max_depth: 2000}}\n"
    )
    (deep,) = sheets(file, "--hardware", "h100")
    assert deep["faults"] == []
    weights = deep["cells"]["online"]["memory"][0]["value"]
    assert weights < 1e9


def test_a_batch_job_moves_what_its_rows_are(home):
    (sheet,) = sheets(EXAMPLES / "tabular.yaml")
    batch = sheet["cells"]["batch"]
    bytes_of_a_row = batch["IO"][0]["value"] / batch["speed"][0]["value"]
    online = sheet["cells"]["online"]
    assert bytes_of_a_row == pytest.approx(online["IO"][0]["value"] / online["speed"][1]["value"])


def test_a_load_is_a_bound():
    words = ("--hardware", "l4,h100", "--load", "1e30")
    done = plan(EXAMPLES / "tabular.yaml", *words)
    assert "none of the machines is enough" in done.stderr


def test_a_budget_without_a_price_is_said():
    done = plan(EXAMPLES / "tabular.yaml", "--budget", "100")
    assert "the budget is not checked for this-machine" in " ".join(done.stderr.split())


@pytest.mark.parametrize("words", [("--budget", "1"), ("--explain",)])
def test_several_files_refuse_what_they_cannot_have(words):
    done = plan(EXAMPLES / "tabular.yaml", str(EXAMPLES / "digits.yaml"), *words)
    assert isinstance(done.exception, InputError)
    assert words[0] in str(done.exception)


def test_an_old_price_is_a_warning():
    done = plan(EXAMPLES / "tabular.yaml", "--hardware", "a10g")
    assert "warning: the price of a10g ($1.006 an hour) is" in done.stderr


def test_a_device_of_ones_own_is_in_the_home(home):
    (home / "hardware.yaml").write_text(DEVICE)
    (sheet,) = sheets(EXAMPLES / "tabular.yaml", "--hardware", "ours")
    assert sheet["machines"]["device"]["label"] == "Ours"


def test_a_decoder_that_does_not_fit_says_which_part(home):
    (home / "hardware.yaml").write_text(DEVICE)
    big = ("hidden_size=8192", "intermediate_size=28672", "num_hidden_layers=80")
    words = [w for each in big for w in ("--set", f"model.params.{each}")]
    done = plan(EXAMPLES / "code_lm.yaml", "--hardware", "ours", *words)
    assert done.exit_code == 0
    assert "too much: training:" in " ".join(done.output.split())
    assert "none of the machines is enough; the nearest is ours" in done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--hardware", "h10O"), "has no device 'h10o'"),
        (("--hardware", "h100x0"), "at least 1"),
        (("--hardware", ","), "names no device"),
        (("--set", "batch.price_per_hour=-1"), "batch.price_per_hour"),
        (("--set", "training.num_workers=0"), "training.num_workers"),
        (("--set", "model.params.hidden=[-1]"), "could not be built|must be"),
    ],
)
def test_wrong_input_is_refused(words, message):
    done = plan(EXAMPLES / "tabular.yaml", *words)
    assert isinstance(done.exception, InputError)
    assert re.search(message, str(done.exception))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("ours: {memory: 1}", "ours"),
        (DEVICE + "  price: {dollars_per_hour: 0, date: 2026-01-01, source: s}", "greater than 0"),
        (DEVICE.replace("1e11", "-1"), "greater than 0"),
        ("- ours", "is not a catalogue"),
        ("ours: [", "cannot be read"),
    ],
)
def test_a_wrong_catalogue_is_refused(home, row, message):
    (home / "hardware.yaml").write_text(row)
    done = plan(EXAMPLES / "tabular.yaml", "--hardware", "h100")
    assert isinstance(done.exception, InputError)
    assert message in str(done.exception)


def test_a_folder_in_place_of_the_catalogue_is_refused(home):
    (home / "hardware.yaml").mkdir()
    done = plan(EXAMPLES / "tabular.yaml", "--hardware", "h100")
    assert isinstance(done.exception, InputError)
    assert "hardware.yaml" in str(done.exception)


def test_this_machine_is_named_in_any_case(monkeypatch):
    l4 = shipped_devices()["l4"]
    monkeypatch.setattr("millrace.tasks.plan.this_device", lambda home, price: l4)
    (sheet,) = sheets(EXAMPLES / "tabular.yaml", "--hardware", "This-MACHINE")
    assert sheet["machines"]["name"] == "this-machine"
    assert sheet["machines"]["device"]["label"] == l4.label


def test_the_cheapest_machine_that_is_enough_is_named():
    done = plan(EXAMPLES / "tabular.yaml", "--hardware", "h100,l4")
    assert "cheapest that is enough: l4, $321 a month" in done.stderr


def test_a_budget_that_is_too_small_says_by_how_much():
    done = plan(EXAMPLES / "tabular.yaml", "--hardware", "h100,l4", "--budget", "100")
    words = " ".join(done.stderr.split())
    assert "the nearest is l4: a month: $321.20, 3.21 times the $100.00" in words


def test_a_deadline_bounds_the_nightly_job():
    words = ("batch.deadline=02:30", "schedule.score='0 2 * * *'", "batch.batch_size=1")
    overrides = [w for each in words for w in ("--set", each)]
    done = plan(EXAMPLES / "tabular.yaml", "--hardware", "l4", *overrides, "--json")
    assert json.loads(done.stdout)["verdicts"][0]["feasible"]


def test_several_models_share_devices():
    files = [EXAMPLES / f"{name}.yaml" for name in ("tabular", "digits", "code_lm")]
    done = plan(*files, "--hardware", "l4", "--load", "100")
    assert done.exit_code == 0, done.output
    assert "1 instead of 3 devices: $642 a month less" in done.stderr
    for name in ("tabular online", "digits online", "code_lm online", "digits batch"):
        assert name in done.stdout
    (packing,) = json.loads(plan(*files, "--hardware", "l4", "--json").stdout)
    assert len(packing["devices"]) == 1


def test_a_training_that_does_not_fit_is_said_and_not_built():
    words = (
        "check",
        EXAMPLES / "tabular.yaml",
        "--full",
        "--set",
        "model.params.hidden=[90000,90000]",
    )
    done = CliRunner().invoke(main.make_app(("plan", "check")), [*map(str, words)])
    assert done.exit_code == 0, done.output
    assert "model: not built, because it does not fit into memory" in done.stdout
    # 8.1e9 weights on each of two workers, of five float32 numbers: with gradients, their copies
    # for the other worker, and two moments
    (warning,) = [line for line in done.stdout.splitlines() if "warning: training needs" in line]
    assert float(re.search(r"needs (\d+) GB", warning)[1]) == pytest.approx(
        2 * 8.1e9 * 20 / 1e9, rel=0.05
    )


def test_accuracy_is_shown_by_machine(home):
    own = [replace(FIRST, run_id=str(n), machine=m) for n, m in enumerate(("one", "one", "other"))]
    append_measurements(str(home / "tables" / "planner" / "measurements"), own)
    done = plan("--accuracy")
    words = " ".join(done.stdout.split())
    assert "accuracy of the estimates, one" in words
    assert "accuracy of the estimates, other" in words
    assert "time of a training step │ 2 │ 20.0% │ 100%" in words
    shown = json.loads(plan("--accuracy", "--json").stdout)
    assert [each["count"] for each in shown["accuracy"]] == [2, 1]


def test_without_measurements_there_is_no_accuracy():
    assert "nothing is measured yet" in plan("--accuracy").stderr


def test_the_next_measurement_is_one_of_the_named_files():
    file = EXAMPLES / "tabular.yaml"
    (line,) = [each for each in plan("--accuracy", file).stderr.splitlines() if "teach" in each]
    assert f"millrace run {file}" in line
    assert "measured 0 times on this machine" in line
    following = json.loads(plan("--accuracy", file, "--json").stdout)["next"]
    assert following["command"].startswith(f"millrace run {file}")


def test_pipelines_of_the_working_folder_may_be_next(tmp_path, monkeypatch):
    (tmp_path / "other.yaml").write_text("no: pipeline")
    monkeypatch.chdir(tmp_path)
    assert json.loads(plan("--accuracy", "--json").stdout) == {"accuracy": [], "next": None}
    for name in ("tabular.yaml", "tabular.csv"):
        (tmp_path / name).write_text((EXAMPLES / name).read_text())
    following = json.loads(plan("--accuracy", "--json").stdout)["next"]
    assert following["file"] == "tabular.yaml"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "needs a pipeline file"),
        ((EXAMPLES / "tabular.yaml", "--budget", "-5"), "--budget must be above 0"),
        ((EXAMPLES / "tabular.yaml", "--budget", "0"), "--budget must be above 0"),
        ((EXAMPLES / "tabular.yaml", "--load", "inf"), "--load must be above 0"),
        ((EXAMPLES / "gone.yaml",), "gone.yaml"),
        (
            (EXAMPLES / "code_lm.yaml", "--set", "serving.generation.tensor_parallel_size=3"),
            "tensor_parallel_size 3 does not divide the 4 heads",
        ),
    ],
)
def test_wrong_arguments_are_refused(words, message):
    done = plan(*words)
    assert isinstance(done.exception, InputError)
    assert message in str(done.exception)


def test_machines_that_cannot_be_packed_are_named_and_the_others_planned():
    files = [EXAMPLES / f"{name}.yaml" for name in ("tabular", "digits")]
    done = plan(*files, "--hardware", "l4x8,l4", "--load", "100")
    assert done.exit_code == 0, done.output
    words = " ".join(done.stderr.split())
    assert "not on l4x8: several pipelines are packed onto single devices" in words
    assert "2 models on NVIDIA L4" in done.stdout
    alone = plan(*files, "--hardware", "l4x8")
    assert "not onto l4x8" in str(alone.exception)
