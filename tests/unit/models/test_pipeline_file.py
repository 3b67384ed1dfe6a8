from pathlib import Path

import pytest
import yaml

from millrace.models.common.errors import InputError
from millrace.models.config.dataset_spec import FILE_FORMATS
from millrace.models.config.model_kind import all_families
from millrace.models.config.pipeline_file import json_schema, load_pipeline, resolved_yaml
from millrace.models.families import family

GOOD = "name: t\ndataset:\n  source: r.csv\n  target: y\n"
EXAMPLES = Path(__file__).parents[3] / "examples"


def load(folder: Path, text: str, *overrides: str) -> object:
    path = folder / "p.yaml"
    path.write_text(text)
    return load_pipeline(path, overrides)


def test_a_pipeline_knows_its_folder(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(GOOD)
    assert load_pipeline(tmp_path / "p.yaml").folder == tmp_path


def test_overrides_are_yaml_and_make_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(GOOD + "promotion: manual\n")
    pipeline = load_pipeline(
        tmp_path / "p.yaml",
        ["training.epochs=5", "model.params={hidden: [8]}", "promotion.mode=auto"],
    )
    assert pipeline.training.epochs == 5
    assert pipeline.model.params == {"hidden": [8]}
    assert pipeline.promotion.mode == "auto"


def test_one_name_stands_for_a_list(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(GOOD + "  key: id\n  features: a\n")
    dataset = load_pipeline(tmp_path / "p.yaml").dataset
    assert (dataset.key, dataset.features) == (("id",), ("a",))


def test_errors_speak_of_lists(tmp_path: Path) -> None:
    text = GOOD + "  key: 5\nexport: {candidates: []}\n"
    with pytest.raises(InputError, match="should be a list") as caught:
        load(tmp_path, text)
    assert "tuple" not in str(caught.value).lower()


@pytest.mark.parametrize("name", ["digits.yaml", "tabular.yaml"])
def test_the_examples_are_valid_and_survive_being_resolved(tmp_path: Path, name: str) -> None:
    pipeline = load_pipeline(EXAMPLES / name)
    (tmp_path / "again.yaml").write_text(resolved_yaml(pipeline))
    assert load_pipeline(tmp_path / "again.yaml").model_dump() == pipeline.model_dump()


def test_every_family_is_known() -> None:
    assert {*family.FAMILIES, "causal_lm", "gradient_boosting"} <= {*all_families()}


def test_the_schema_lists_the_formats_and_variants_of_the_tables() -> None:
    parts = json_schema()["$defs"]
    formats = parts["DatasetSpec"]["properties"]["format"]["enum"]
    assert formats == ["auto", *FILE_FORMATS, "text", "delta"]
    variants = parts["ExportSpec"]["properties"]["candidates"]["items"]["enum"]
    assert {"onnx-fp32", "tensorrt-int8", "openvino-int4", "vllm-awq"} <= set(variants)


def test_the_schema_describes_the_keys() -> None:
    assert json_schema()["properties"]["dataset"]["description"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name: t\n  dataset: [\n", ["line 2", "column", "not valid YAML"]),
        ("name: t\nname: u\n", ["line 2, column 1", "'name' occurs twice"]),
        ("", ["holds no pipeline", "seen: nothing"]),
        ("- a\n", ["seen: list"]),
        ("name: t\n", ["dataset: is missing"]),
        (GOOD + "trainning: {}\n", ["line 5: trainning", "did you mean 'training'?"]),
        (GOOD + "training:\n  epoch: 3\n", ["line 6: training.epoch", "did you mean 'epochs'?"]),
        (GOOD + "training: {epochs: 0}\n", ["line 5: training.epochs", "seen 0"]),
        (GOOD + "export: {objective: latancy}\n", ["'latancy'", "did you mean 'latency'?"]),
        (GOOD + "model: {family: mlpp}\n", ["line 5: model.family", "did you mean 'mlp'?"]),
        (
            GOOD + "export: {candidates: [onnx-fp-16]}\n",
            ["line 5: export.candidates.0", "should be 'onnx-fp32', ", "mean 'onnx-fp16'?"],
        ),
        (GOOD + "  format: parket\n", ["line 5: dataset.format", "did you mean 'parquet'?"]),
        (GOOD.replace("target: y", "target: no"), ["dataset.target", "put it in quotes"]),
        (GOOD.replace("name: t", "name: T x"), ["line 1: name", "a small letter, then", "'T x'"]),
        (
            GOOD.replace("name: t", "name: t.arms"),
            ["seen 't.arms'", "names with a dot are reserved for Millrace"],
        ),
        (
            GOOD + "  columns:\n    a: {typ: float}\n",
            ["line 6: dataset.columns.a.typ", "did you mean 'type'?"],
        ),
        (
            GOOD + "  split: {train: 0.9, validation: 0.9, test: 0.1}\n",
            ["line 5: dataset.split", "must add up to 1"],
        ),
        (
            GOOD + "training: {epochs: x}\nserving: {max_batch: 3}\n",
            ["2 problems", "training.epochs", "did you mean 'max_batch_size'?"],
        ),
    ],
)
def test_mistakes_are_told_with_their_place(tmp_path: Path, text: str, words: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        load(tmp_path, text)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("training.epochs", "malformed"),
        ("training..epochs=1", "malformed"),
        ("training.epochs=[", "not YAML"),
        ("training.epoch=3", "--set training.epoch: there"),
    ],
)
def test_wrong_overrides_are_told(tmp_path: Path, override: str, words: str) -> None:
    with pytest.raises(InputError, match=words.replace(".", r"\.")):
        load(tmp_path, GOOD, override)


@pytest.mark.parametrize(
    ("text", "overrides", "told", "file_is_named"),
    [
        ("", ["training.epochs=0"], "in --set\n  --set training.epochs: input", False),
        ("training: {epochs: 5}\n", ["training={epochs: 0}"], "  --set training: ", False),
        ("training: {epochs: 0}\n", ["training.batch_size=5"], "  line 5: training.epochs", True),
        (
            "training: {epochs: 0}\n",
            ["training.batch_size=0"],
            "p.yaml and --set\n  line 5: training.epochs",
            True,
        ),
        (
            "rollout: {steps: [10]}\n",
            ["rollout.steps=[50, 10]"],
            "  line 5 and --set rollout.steps: rollout: steps must rise",
            False,
        ),
        ("", ["model.family=mlpp"], "in --set\n  --set model.family: model.family", False),
    ],
)
def test_what_came_from_set_is_not_put_down_to_the_file(
    tmp_path: Path, text: str, overrides: list[str], told: str, file_is_named: bool
) -> None:
    with pytest.raises(InputError) as caught:
        load(tmp_path, GOOD + text, *overrides)
    assert told in caught.value.what
    assert ("the pipeline file" in caught.value.what) == file_is_named


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("promotion: {require: {slo: true}}\n", "promotion.require.slo: there is no goal to prove"),
        (
            "serving: {max_batch_size: 8, slo: {p99_ms: 5, rate: 1, rows: {1: 1, 9: 1}}}\n",
            "serving.slo.rows: the server takes no such request",
        ),
    ],
)
def test_a_goal_that_no_version_can_prove_is_refused(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        load(tmp_path, GOOD + text)
    assert "line 5" in str(caught.value)


def test_a_missing_file_is_told_with_the_nearest_name(tmp_path: Path) -> None:
    (tmp_path / "digits.yaml").write_text(GOOD)
    with pytest.raises(InputError, match="did you mean 'digits.yaml'"):
        load_pipeline(tmp_path / "digit.yaml")


def test_a_family_of_the_users_own_is_taken_by_its_word(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(GOOD + "model: {family: 'net:Net'}\n")
    assert load_pipeline(tmp_path / "p.yaml").model.family == "net:Net"


def test_resolved_yaml_holds_no_password(tmp_path: Path) -> None:
    text = GOOD.replace("r.csv", "https://ann:secret@host/r.csv?token=hidden&v=1")
    (tmp_path / "p.yaml").write_text(text)
    pipeline = load_pipeline(tmp_path / "p.yaml")
    assert "secret" in pipeline.dataset.source, "it is read with it"
    told = yaml.safe_load(resolved_yaml(pipeline))["dataset"]["source"]
    assert told == "https://***@host/r.csv?token=***&v=1"


def test_resolved_yaml_holds_the_defaults(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(GOOD)
    values = yaml.safe_load(resolved_yaml(load_pipeline(tmp_path / "p.yaml")))
    assert values["training"]["epochs"] == 20


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("train", "every monday", "cron"),
        ("score", "61 * * * *", "cron"),
        ("timezone", "Mars/X", "time zone"),
    ],
)
def test_a_schedule_that_cannot_be_read_is_refused(tmp_path, key, value, says) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(
        f"{{name: a, dataset: {{source: a.csv, target: y}}, schedule: {{{key}: '{value}'}}}}"
    )
    with pytest.raises(InputError) as caught:
        load_pipeline(file)
    assert f"schedule.{key}" in str(caught.value)
    assert says in str(caught.value)


@pytest.mark.parametrize(("given", "says"), [("[onnx-int3]", "onnx-int8-"), ("[]", "at least 1")])
def test_a_list_with_a_wrong_item_is_one_problem(tmp_path: Path, given: str, says: str) -> None:
    file = tmp_path / "p.yaml"
    dataset = "dataset: {source: x.csv, target: y}"
    file.write_text(f"{{name: a, {dataset}, export: {{candidates: {given}}}}}")
    with pytest.raises(InputError, match="a problem in") as caught:
        load_pipeline(file)
    assert says in caught.value.what
