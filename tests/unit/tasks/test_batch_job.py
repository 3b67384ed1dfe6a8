"""Which job scores with a version: by its files, and by the GPUs that Ray has."""

from pathlib import Path
from typing import Any

import pytest

from millrace.models.common.errors import InputError
from millrace.models.common.installation import Installation
from millrace.models.config.pipeline import Pipeline
from millrace.models.data.schema import Column
from millrace.models.registry.version_files import LanguagePackage, ModelVersion
from millrace.serving.batch.fingerprint import fingerprint_of
from millrace.serving.batch.prompts.openvino_job import PromptJob
from millrace.serving.batch.prompts.vllm_job import VllmJob
from millrace.tasks.batch import choose_job
from millrace.tasks.batch.choose_job import job_of

PYTHON = Path("/of/vllm/python")
PLACES = Installation(Path("/home"), "sqlite://", "/tables", vllm_python=PYTHON)


def package(*files: str) -> LanguagePackage:
    folder = Path("/fetched")
    version = ModelVersion("lm", 4, "f" * 64, "run")
    return LanguagePackage(version, {name: folder / "form" / name for name in files}, folder)


def pipeline(**batch: Any) -> Pipeline:
    return Pipeline.model_validate(
        {
            "name": "lm",
            "dataset": {"source": "rows.jsonl", "target": "text", "features": []},
            "model": {"family": "causal_lm"},
            "serving": {"generation": {"tensor_parallel_size": 2, "cache_size_gib": 6}},
            "batch": {"prompt": "question", "key": ["id"], "sampling": {"seed": 5}, **batch},
        }
    )


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Ray with four GPUs and vLLM beside them."""
    monkeypatch.setattr(choose_job, "gpus_of_ray", lambda: 4.0)
    monkeypatch.setattr(choose_job, "vllm_version", lambda python: f"0.33.0 of {python}")


@pytest.mark.usefixtures("gpus")
def test_a_form_for_vllm_is_answered_by_engines_on_the_gpus() -> None:
    job = job_of(pipeline(), package("model.safetensors", "config.json"), PLACES, ())
    assert isinstance(job, VllmJob)
    assert (job.engines, job.python, job.vllm) == (2, PYTHON, f"0.33.0 of {PYTHON}")
    assert job.arguments["model"] == "/fetched/form"
    assert job.arguments["tensor_parallel_size"] == 2
    assert job.arguments["kv_cache_memory_bytes"] == 3 * 2**30


@pytest.mark.usefixtures("gpus")
def test_the_same_file_serves_a_form_for_openvino() -> None:
    found = [job_of(pipeline(), package(name), PLACES, ()) for name in ("a.xml", "a.safetensors")]
    assert [type(job) for job in found] == [PromptJob, VllmJob]
    assert len({(job.prompt, job.key, job.sampling, job.batch_size) for job in found}) == 1


@pytest.mark.usefixtures("gpus")
def test_engines_may_be_fewer_than_there_is_room_for() -> None:
    job = job_of(pipeline(num_actors=1, batch_size=32), package("a.safetensors"), PLACES, ())
    assert isinstance(job, VllmJob)
    assert (job.engines, job.batch_size) == (1, 32)


def test_without_a_gpu_nothing_is_asked_or_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose_job, "gpus_of_ray", lambda: 0.0)
    with pytest.raises(InputError, match="there is no GPU for vLLM"):
        job_of(pipeline(), package("a.safetensors"), PLACES, ())


def test_prompts_are_known_by_the_keys_of_the_dataset_as_rows_are() -> None:
    held = (Column("id", "int"),)
    values = pipeline(key=()).model_dump()
    values["dataset"]["key"] = ["id"]
    keyed = Pipeline.model_validate(values)
    form = package("a.xml")
    job = job_of(keyed, form, PLACES, held)
    assert (job.key, job.held) == (("id",), held)
    without = job_of(pipeline(key=()), form, PLACES, held)
    assert without.key == ()
    assert fingerprint_of(job, {}) != fingerprint_of(without, {})
    own = job_of(Pipeline.model_validate({**values, "batch": {"key": ["n"]}}), form, PLACES, held)
    assert own.key == ("n",)
