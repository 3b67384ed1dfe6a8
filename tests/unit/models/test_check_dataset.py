from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from millrace.models.common.errors import InputError
from millrace.models.common.installation import Installation
from millrace.models.config.dataset_spec import DatasetSpec
from millrace.models.config.model_kind import kind_of_family
from millrace.models.config.pipeline import Pipeline
from millrace.models.data import ingest
from millrace.models.data.row_checks import check
from millrace.models.data.schema import Column, TableSchema
from millrace.models.preflight import preflight

TEXT = {"type": "text"}
CHAT = {"type": "messages"}


def check_dataset(spec: DatasetSpec, family: str) -> None:
    kind_of_family(family).check_dataset(spec, family)


def spec(**dataset: Any) -> DatasetSpec:
    return DatasetSpec.model_validate({"source": "r.jsonl", "target": "t", **dataset})


@pytest.mark.parametrize(
    "dataset",
    [
        {"features": []},
        {"features": [], "columns": {"t": TEXT}},
        {"features": [], "columns": {"t": CHAT}},
        {"features": ["prompt"], "columns": {"t": TEXT}},
    ],
)
def test_a_language_model_takes_a_text_an_answer_or_a_chat(dataset: dict[str, Any]) -> None:
    check_dataset(spec(**dataset), "causal_lm")


@pytest.mark.parametrize(
    ("dataset", "words"),
    [
        ({}, ["generates text", "no type", "dataset.columns: {t: {type: text}}"]),
        ({"features": ["prompt"]}, ["not declared as text"]),
        (
            {"features": [], "columns": {"t": {"type": "category"}}},
            ["is not text", "seen: category"],
        ),
        ({"columns": {"t": TEXT}}, ["dataset.features: left out"]),
        ({"columns": {"t": TEXT}, "features": ["a", "b"]}, ["a, b", "[] or one column"]),
        ({"columns": {"t": CHAT}, "features": ["a"]}, ["contain the prompts already"]),
    ],
)
def test_other_data_is_refused_for_a_language_model(
    dataset: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(InputError) as caught:
        check_dataset(spec(**dataset), "causal_lm")
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("family", ["mlp", "cnn", "text_classifier", "mine:Net"])
@pytest.mark.parametrize("dataset", [{"features": []}, {"columns": {"t": CHAT}}])
def test_a_text_to_continue_is_refused_for_every_other_family(
    family: str, dataset: dict[str, Any]
) -> None:
    with pytest.raises(InputError, match="does not generate text") as caught:
        check_dataset(spec(**dataset), family)
    assert "model.family: causal_lm" in str(caught.value)


def pipeline(folder: Path, family: str, **dataset: Any) -> Pipeline:
    values = {
        "name": "t",
        "dataset": {"source": "r.jsonl", "target": "t", **dataset},
        "model": {"family": family},
    }
    return Pipeline.model_validate(values).with_folder(folder)


def test_check_and_ingestion_tell_it_alike(tmp_path: Path) -> None:
    (tmp_path / "r.jsonl").write_text('{"t": "text"}\n')
    wrong = pipeline(tmp_path, "mlp", features=[])
    installation = Installation(tmp_path / "home", "", str(tmp_path / "home" / "tables"))
    for attempt in (lambda: preflight(wrong), lambda: ingest.ingest(wrong, installation)):
        with pytest.raises(InputError, match="the family 'mlp' does not generate text"):
            attempt()


def test_instructions_are_a_prompt_and_its_answer_both_text(tmp_path: Path) -> None:
    lines = [f'{{"prompt": "2024-01-{n:02}", "t": "{n}"}}' for n in range(1, 29)]
    (tmp_path / "r.jsonl").write_text("\n".join(lines))
    installation = Installation(tmp_path / "home", "", str(tmp_path / "home" / "tables"))
    columns = {"t": TEXT, "prompt": TEXT}
    made = ingest.ingest(
        pipeline(tmp_path, "causal_lm", features=["prompt"], columns=columns), installation
    )
    assert [made.schema.column(name).type for name in ("prompt", "t")] == ["text", "text"]


def test_a_prompt_need_not_be_declared(tmp_path: Path) -> None:
    (tmp_path / "r.jsonl").write_text('{"prompt": "what?", "t": "that"}\n' * 3)
    installation = Installation(tmp_path / "home", "", str(tmp_path / "home" / "tables"))
    asked = pipeline(tmp_path, "causal_lm", features=["prompt"], columns={"t": TEXT})
    assert ingest.ingest(asked, installation).schema.column("prompt").type == "text"


def test_a_target_of_numbers_is_not_continued(tmp_path: Path) -> None:
    (tmp_path / "r.jsonl").write_text('{"t": 1.5}\n{"t": 2.5}\n')
    installation = Installation(tmp_path / "home", "", str(tmp_path / "home" / "tables"))
    with pytest.raises(InputError, match="'t' holds a float, which cannot train a language model"):
        ingest.ingest(pipeline(tmp_path, "causal_lm", features=[]), installation)


def test_text_that_is_not_utf8_goes_to_quarantine() -> None:
    offsets, data = pa.py_buffer(pa.array([0, 2, 4], pa.int32()).buffers()[1]), b"ok\xff\xfe"
    broken = pa.StringArray.from_buffers(2, offsets, pa.py_buffer(data))
    schema = TableSchema((Column("t", "text"),), (), "t", ())
    checked = check(pa.record_batch({"t": broken}), schema)
    assert checked.good.to_pylist() == [{"t": "ok"}]
    assert checked.bad.to_pylist() == [{"reason": "t: not text", "row": '{"t": "\ufffd\ufffd"}'}]
