"""Which job scores with a version: by its files, and by the GPUs that Ray has."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from millrace.models.common.errors import InputError
from millrace.models.common.installation import Installation
from millrace.models.config.pipeline import Pipeline
from millrace.models.data.schema import Column
from millrace.models.inference.features import Encoding, Feature
from millrace.models.registry.version_files import KIND_TAG, ModelVersion, Package
from millrace.serving.batch.fingerprint import fingerprint_of
from millrace.serving.batch.prompts.openvino_job import PromptJob
from millrace.serving.batch.prompts.vllm_job import VllmJob
from millrace.serving.batch.row_job import RowJob
from millrace.tasks.kinds.language import language_batch
from millrace.tasks.kinds.steps import steps_of

PYTHON = Path("/of/vllm/python")
PLACES = Installation(Path("/home"), "sqlite://", "/tables", vllm_python=PYTHON)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "golden.json").write_text("{}")
    return tmp_path


def package(folder: Path, *files: str) -> Package:
    version = ModelVersion("lm", 4, "f" * 64, "run", tags={KIND_TAG: "language"})
    return Package(version, {name: folder / "form" / name for name in files}, folder)


def job_of(pipeline: Pipeline, package: Package, held: tuple[Column, ...] = ()) -> Any:
    return steps_of(package.version.kind).batch_job(pipeline, package, PLACES, held)


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
    monkeypatch.setattr(language_batch, "gpus_of_ray", lambda: 4.0)
    monkeypatch.setattr(language_batch, "vllm_version", lambda python: f"0.33.0 of {python}")


@pytest.mark.usefixtures("gpus")
def test_a_form_for_vllm_is_answered_by_engines_on_the_gpus(folder: Path) -> None:
    job = job_of(pipeline(), package(folder, "model.safetensors", "config.json"))
    assert isinstance(job, VllmJob)
    assert (job.engines, job.python, job.vllm) == (2, PYTHON, f"0.33.0 of {PYTHON}")
    assert job.arguments["model"] == str(folder / "form")
    assert job.arguments["tensor_parallel_size"] == 2
    assert job.arguments["kv_cache_memory_bytes"] == 3 * 2**30


@pytest.mark.usefixtures("gpus")
def test_the_same_file_serves_a_form_for_openvino(folder: Path) -> None:
    found = [job_of(pipeline(), package(folder, name)) for name in ("a.xml", "a.safetensors")]
    assert [type(job) for job in found] == [PromptJob, VllmJob]
    assert len({(job.prompt, job.key, job.sampling, job.batch_size) for job in found}) == 1


@pytest.mark.usefixtures("gpus")
def test_engines_may_be_fewer_than_there_is_room_for(folder: Path) -> None:
    job = job_of(pipeline(num_actors=1, batch_size=32), package(folder, "a.safetensors"))
    assert isinstance(job, VllmJob)
    assert (job.engines, job.batch_size) == (1, 32)


def test_without_a_gpu_nothing_is_asked_or_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(language_batch, "gpus_of_ray", lambda: 0.0)
    with pytest.raises(InputError, match="there is no GPU for vLLM"):
        job_of(pipeline(), package(folder, "a.safetensors"))


def test_prompts_are_known_by_the_keys_of_the_dataset_as_rows_are(folder: Path) -> None:
    held = (Column("id", "int"),)
    values = pipeline(key=()).model_dump()
    values["dataset"]["key"] = ["id"]
    keyed = Pipeline.model_validate(values)
    variant = package(folder, "a.xml")
    job = job_of(keyed, variant, held)
    assert (job.key, job.dataset_columns) == (("id",), held)
    without = job_of(pipeline(key=()), variant, held)
    assert without.key == ()
    assert fingerprint_of(job, {}) != fingerprint_of(without, {})
    own = job_of(Pipeline.model_validate({**values, "batch": {"key": ["n"]}}), variant, held)
    assert own.key == ("n",)


def test_a_graph_scores_rows_as_the_file_says(tmp_path: Path) -> None:
    encoding = Encoding((Feature("a", "number"),), "t")
    (tmp_path / "encoding.json").write_text(encoding.to_json())
    version = ModelVersion("m", 3, "d" * 64, "run")
    graph = Package(version, {"model.onnx": tmp_path / "model.onnx"}, tmp_path)
    values = {"name": "m", "dataset": {"source": "rows.csv", "target": "t", "key": ["id"]}}
    held = (Column("id", "int"),)
    job = job_of(Pipeline.model_validate(values), graph, held)
    assert isinstance(job, RowJob)
    assert (job.model, job.version, job.digest) == ("m", 3, "d" * 64)
    assert (job.onnx, job.encoding) == (tmp_path / "model.onnx", encoding)
    assert (job.key, job.dataset_columns, job.batch_size) == (("id",), held, 1024)
    batch = {"key": ["n"], "batch_size": 8, "threads_per_actor": 2}
    other = job_of(Pipeline.model_validate({**values, "batch": batch}), graph)
    assert (other.key, other.batch_size, other.threads) == (("n",), 8, 2)


def test_a_version_whose_files_are_of_another_kind_is_refused(folder: Path) -> None:
    language = package(folder, "a.xml")
    graph = replace(language, version=replace(language.version, tags={}))
    with pytest.raises(InputError, match="lm version 4 is a graph model"):
        job_of(pipeline(), graph)
