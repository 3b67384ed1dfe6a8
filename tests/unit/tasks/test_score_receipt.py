"""A receipt holds as long as nothing has changed that a job follows from, and no longer."""

import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path

import pyarrow as pa
import pytest

from millrace.models.common.errors import TransientError
from millrace.models.common.installation import Installation
from millrace.models.config.pipeline import Pipeline
from millrace.models.registry.mlflow_registry import registry_of
from millrace.models.registry.tracking import client
from millrace.models.registry.version_files import CHAMPION
from millrace.serving.batch.job_state import hold_job, job_state_of
from millrace.serving.release.ledger import ledger_of
from millrace.serving.release.release_state import Release
from millrace.tasks.batch.score_receipt import (
    Receipt,
    ScoreRequest,
    find_matching_receipt,
    find_stored_report,
    read_facts,
    with_version,
)
from tests.integration.planted import DATASET, Planted, good, ingest_rows, plant
from tests.unit.tasks.test_batch_run import REPORT

DAY = "2026-01-05"
PRINT = "f" * 64
NUMBERS = count()


@pytest.fixture
def version(mlflow_places: Installation) -> Planted:
    """The champion of a model of its own."""
    name = f"receipt-{next(NUMBERS)}"
    ingest_rows(mlflow_places, name)
    made = plant(mlflow_places, name, good())
    registry = registry_of(mlflow_places)
    registry.set_alias(registry.version(name, made.number), CHAMPION)
    return made


@pytest.fixture
def request_(mlflow_places: Installation, version: Planted, tmp_path: Path) -> ScoreRequest:
    """A request for a file of two rows, which was written a while ago."""
    write_rows(tmp_path / "rows.jsonl", 2)
    keys = {"name": version.name, "dataset": DATASET.model_dump(exclude_unset=True)}
    pipeline = Pipeline.model_validate(keys).with_folder(tmp_path)
    return ScoreRequest(pipeline, mlflow_places, str(tmp_path / "rows.jsonl"), DAY)


def write_rows(file: Path, rows: int) -> None:
    file.write_text(f"{json.dumps({'v': [0.0, 1.0, 2.0, 3.0]})}\n" * rows)
    age(file, 60)


def age(file: Path, seconds: float) -> None:
    at = time.time() - seconds
    os.utime(file, (at, at))


def leave_receipt(request: ScoreRequest) -> Receipt:
    facts = read_facts(request)
    assert facts is not None
    scores = registry_of(request.installation).version(request.pipeline.name, 1)
    receipt = Receipt(with_version(facts, scores), 1, PRINT, is_reported=True)
    receipt.write(request)
    return receipt


def commit(request: ScoreRequest, fingerprint: str = PRINT) -> None:
    partition = replace(request.partition, job="job-1")
    rows = pa.table({"x": [1, 2]})
    partition.folder.write_table("part.parquet", rows)
    report = replace(REPORT, fingerprint=fingerprint, dead=0, job="job-1")
    partition.commit(rows.schema, report.metadata())


def test_a_receipt_holds_where_nothing_has_changed(request_: ScoreRequest) -> None:
    receipt = leave_receipt(request_)
    assert find_matching_receipt(request_) == receipt


def change_input(request: ScoreRequest) -> ScoreRequest:
    write_rows(Path(str(request.source)), 3)
    return request


def touch_input(request: ScoreRequest) -> ScoreRequest:
    age(Path(str(request.source)), 30)
    return request


def delete_input(request: ScoreRequest) -> ScoreRequest:
    Path(str(request.source)).unlink()
    return request


def tag_version(request: ScoreRequest) -> ScoreRequest:
    store = client(request.installation.tracking_uri)
    store.set_model_version_tag(request.pipeline.name, "1", "millrace.status", "refused")
    return request


def remove_champion(request: ScoreRequest) -> ScoreRequest:
    store = client(request.installation.tracking_uri)
    store.delete_registered_model_alias(request.pipeline.name, CHAMPION)
    return request


def delete_version(request: ScoreRequest) -> ScoreRequest:
    client(request.installation.tracking_uri).delete_model_version(request.pipeline.name, "1")
    return request


def release(request: ScoreRequest) -> ScoreRequest:
    ledger_of(request.installation).append(Release(request.pipeline.name, "refused", 1, "d"))
    return request


def ingest(request: ScoreRequest) -> ScoreRequest:
    ingest_rows(request.installation, request.pipeline.name, rows=150)
    return request


def trust_another(request: ScoreRequest) -> ScoreRequest:
    return replace(request, installation=replace(request.installation, trusted_signers=("k",)))


def ask_vllm(request: ScoreRequest) -> ScoreRequest:
    return replace(request, installation=replace(request.installation, vllm_python=Path("/py")))


def move_to_cluster(request: ScoreRequest) -> ScoreRequest:
    return replace(request, installation=replace(request.installation, ray_address="http://h:1"))


def change_pipeline(request: ScoreRequest) -> ScoreRequest:
    batch = request.pipeline.batch.model_copy(update={"batch_size": 7})
    return replace(request, pipeline=request.pipeline.model_copy(update={"batch": batch}))


def name_version(request: ScoreRequest) -> ScoreRequest:
    return replace(request, version=1)


def ask_for_another_day(request: ScoreRequest) -> ScoreRequest:
    return replace(request, date="2026-01-06")


@pytest.mark.parametrize(
    "change",
    [
        *(change_input, touch_input, delete_input, tag_version, remove_champion, delete_version),
        *(release, ingest, trust_another, ask_vllm, move_to_cluster, change_pipeline),
        *(name_version, ask_for_another_day),
    ],
)
def test_a_receipt_holds_no_longer_after(
    change: Callable[[ScoreRequest], ScoreRequest], request_: ScoreRequest
) -> None:
    leave_receipt(request_)
    assert find_matching_receipt(change(request_)) is None


def test_a_file_of_the_last_seconds_gives_no_receipt(request_: ScoreRequest) -> None:
    Path(str(request_.source)).touch()
    assert read_facts(request_) is None


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"facts": {}, "other": 1}'])
def test_a_receipt_that_cannot_be_read_is_none(text: str, request_: ScoreRequest) -> None:
    leave_receipt(request_)
    request_.receipt.write_text(text)
    assert find_matching_receipt(request_) is None


def test_the_report_is_that_of_the_commit(request_: ScoreRequest) -> None:
    receipt = leave_receipt(request_)
    assert find_stored_report(request_, receipt) is None
    commit(request_)
    found = find_stored_report(request_, receipt)
    assert found == replace(
        REPORT, fingerprint=PRINT, dead=0, job="job-1", table_version=1, unchanged=True
    )


def test_the_commit_of_another_job_is_no_answer(request_: ScoreRequest) -> None:
    receipt = leave_receipt(request_)
    commit(request_, "e" * 64)
    assert find_stored_report(request_, receipt) is None


def test_a_job_that_is_not_reported_or_not_cleaned_up_is_no_answer(request_: ScoreRequest) -> None:
    receipt = leave_receipt(request_)
    commit(request_)
    assert find_stored_report(request_, replace(receipt, is_reported=False)) is None
    job_state_of(request_.partition, PRINT).folder.make()
    assert find_stored_report(request_, receipt) is None


def test_a_job_that_runs_is_reported(request_: ScoreRequest) -> None:
    receipt = replace(leave_receipt(request_), is_reported=False)
    with (
        hold_job(request_.partition, PRINT),
        pytest.raises(TransientError, match="another run of this batch job is in progress"),
    ):
        find_stored_report(request_, receipt)
