"""A model's files on a node that does not have them."""

import os
import shutil
import tempfile
import time
from pathlib import Path

import pytest
import ray

from millrace.models.common.errors import WorkError
from millrace.models.inference.features import Encoding, Feature
from millrace.serving.batch.cluster import model_files
from millrace.serving.batch.cluster.model_files import (
    put_model_files,
    with_files_on_nodes,
    with_local_files,
)
from millrace.serving.batch.job import Job
from millrace.serving.batch.prompts.openvino_job import PromptJob
from millrace.serving.batch.row_job import RowJob

pytestmark = pytest.mark.usefixtures("local_ray")


@pytest.fixture(params=["rows", "prompts"])
def job(request: pytest.FixtureRequest, tmp_path: Path) -> Job:
    folder = tmp_path / "driver"
    folder.mkdir()
    (folder / "model.onnx").write_bytes(b"graph")
    if request.param == "rows":
        encoding = Encoding((Feature("a", "number"),), "t")
        return RowJob("m", 7, "digest", folder / "model.onnx", encoding)
    (folder / "config.json").write_text("{}")
    (folder / "empty.txt").write_text("")
    return PromptJob("m", 7, "digest", folder)


def contents(job: Job) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in job.files}


def test_files_that_are_there_are_not_fetched(job: Job, tmp_path: Path) -> None:
    assert with_local_files(job, put_model_files(job), tmp_path) is job
    assert with_local_files(job, None, tmp_path) is job


def test_files_that_are_not_there_come_from_the_driver(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_files, "CHUNK_BYTES", 2)
    sent, model = contents(job), put_model_files(job)
    shutil.rmtree(job.folder)
    cache = tmp_path / "node"
    cache.mkdir()
    here = with_local_files(job, model, cache)
    assert contents(here) == sent
    assert here.folder.is_relative_to(cache)


def test_files_that_came_before_are_found_again_and_damaged_ones_fetched_again(
    job: Job, tmp_path: Path
) -> None:
    sent, model = contents(job), put_model_files(job)
    shutil.rmtree(job.folder)
    cache = tmp_path / "node"
    cache.mkdir()
    here = with_local_files(job, model, cache)
    first = here.files[0].stat().st_ino
    assert with_local_files(job, model, cache).files[0].stat().st_ino == first
    here.files[0].write_bytes(b"damaged")
    assert contents(with_local_files(job, model, cache)) == sent


def test_files_that_come_with_other_bytes_are_refused(job: Job, tmp_path: Path) -> None:
    model = put_model_files(job)
    name = next(iter(model.chunks))
    wrong = model_files.ModelFiles(model.digest, {**model.chunks, name: [ray.put(b"other")]})
    shutil.rmtree(job.folder)
    with pytest.raises(WorkError, match="differ from those that the driver sent"):
        with_local_files(job, wrong, tmp_path)


def test_a_model_that_nobody_uses_any_more_makes_room(job: Job, tmp_path: Path) -> None:
    model = put_model_files(job)
    shutil.rmtree(job.folder)
    for name, days in (("old", 8), ("recent", 6)):
        (tmp_path / name).mkdir()
        then = time.time() - days * 24 * 3600
        os.utime(tmp_path / name, (then, then))
    with_local_files(job, model, tmp_path)
    assert not (tmp_path / "old").exists()
    assert (tmp_path / "recent").exists()


def test_a_folder_that_others_can_write_is_not_used(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    model = put_model_files(job)
    shutil.rmtree(job.folder)
    assert with_local_files(job, model).folder.is_relative_to(tmp_path)
    (tmp_path / f"millrace-models-{os.getuid()}").chmod(0o777)
    with pytest.raises(WorkError, match="not private to this user"):
        with_local_files(job, model)


def test_files_come_to_every_node_of_a_kind_before_they_are_wanted(
    job: Job, tmp_path: Path
) -> None:
    sent, model = contents(job), put_model_files(job)
    assert with_files_on_nodes(job, model, "CPU", tmp_path) is job
    shutil.rmtree(job.folder)
    cache = tmp_path / "node"
    cache.mkdir()
    here = with_files_on_nodes(job, model, "CPU", cache)
    assert contents(here) == sent
    assert here.folder.is_relative_to(cache)
