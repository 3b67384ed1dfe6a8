from dataclasses import replace
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from millrace.models.data.schema import Column
from millrace.models.inference.features import Encoding, Feature
from millrace.serving.batch import fingerprint as module
from millrace.serving.batch.fingerprint import fingerprint_of
from millrace.serving.batch.prompts import openvino_job
from millrace.serving.batch.prompts.openvino_job import PromptJob
from millrace.serving.batch.prompts.prompt_rows import Sampling
from millrace.serving.batch.row_job import RowJob

ROWS = RowJob("m", 1, "d", Path("m.onnx"), Encoding((Feature("a", "number"),), "t"), ("id",))
PROMPTS = PromptJob("m", 1, "d", Path("form"))
MANIFEST = {"format": "delta", "table": "t", "version": 3}


@pytest.mark.parametrize(
    "other",
    [
        replace(ROWS, version=2),
        replace(ROWS, digest="e"),
        replace(ROWS, model="n"),
        replace(ROWS, key=()),
        replace(ROWS, batch_size=1),
        replace(ROWS, batch_tokens=1),
        replace(ROWS, dataset_columns=(Column("a", "bool"),)),
    ],
)
def test_another_model_key_or_parameter_is_another_job(other: RowJob) -> None:
    assert fingerprint_of(other, MANIFEST) != fingerprint_of(ROWS, MANIFEST)


@pytest.mark.parametrize(
    "other",
    [
        replace(PROMPTS, prompt="question"),
        *(
            replace(PROMPTS, sampling=Sampling(**change))
            for change in ({"max_tokens": 3}, {"temperature": 0.5}, {"seed": 1}, {"stop": ("x",)})
        ),
    ],
)
def test_another_way_to_go_on_from_a_prompt_is_another_job(other: PromptJob) -> None:
    assert fingerprint_of(other, MANIFEST) != fingerprint_of(PROMPTS, MANIFEST)


def test_another_input_is_another_job() -> None:
    assert fingerprint_of(ROWS, {**MANIFEST, "version": 4}) != fingerprint_of(ROWS, MANIFEST)


@pytest.mark.parametrize("other", [replace(ROWS, threads=4), replace(ROWS, onnx=Path("moved"))])
def test_what_changes_no_answer_is_the_same_job(other: RowJob) -> None:
    assert fingerprint_of(other, MANIFEST) == fingerprint_of(ROWS, MANIFEST)


def test_a_graph_is_scored_without_the_extras() -> None:
    wanted = (Requirement(each) for each in requires("millrace") or ())
    assert {*module.ENGINES} <= {each.name for each in wanted if each.marker is None}


def test_another_engine_of_prompts_is_another_job(monkeypatch: pytest.MonkeyPatch) -> None:
    before = fingerprint_of(PROMPTS, MANIFEST)
    monkeypatch.setattr(openvino_job, "version", lambda name: f"{name} 1")
    assert fingerprint_of(PROMPTS, MANIFEST) != before


def test_other_code_is_another_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = set()
    for text in ("a = 1", "a = 2"):
        (tmp_path / "models").mkdir(exist_ok=True)
        (tmp_path / "models" / "a.py").write_text(text)
        monkeypatch.setattr(module, "ROOT", tmp_path)
        module.code_digest.cache_clear()
        found.add(fingerprint_of(ROWS, MANIFEST))
    module.code_digest.cache_clear()
    assert len(found) == 2
