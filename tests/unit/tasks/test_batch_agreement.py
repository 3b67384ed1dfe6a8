"""That nothing about the live server keeps a batch job from its commit."""

import logging
import socket
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from millrace.models.common.installation import Endpoint, Installation
from millrace.models.inference.features import Encoding, Feature
from millrace.models.registry.version_files import KIND_TAG, ModelVersion, Package
from millrace.serving.batch.commit import Partition
from millrace.serving.batch.input.row_sample import ScoredRows
from millrace.serving.batch.monitoring.agreement import Agreement
from millrace.serving.batch.prompts.openvino_job import PromptJob
from millrace.serving.batch.prompts.prompt_rows import Sampling
from millrace.serving.batch.row_job import RowJob
from millrace.tasks.batch.agreement_sample import LiveCheck

ROWS = RowJob("m", 3, "d", Path("m.onnx"), Encoding((Feature("a", "number"),), "t"))
DRAWN = PromptJob("m", 3, "d", Path("form"), sampling=Sampling(temperature=0.7))


@pytest.fixture
def silent() -> Iterator[int]:
    """The port of something that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def closed() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


def reason_of(job: RowJob | PromptJob, folder: Path, port: int) -> str:
    """Return why a job is not compared where its live model would be at a port."""
    installation = Installation(
        folder, "", str(folder / "tables"), triton=(Endpoint(grpc_port=port),)
    )
    told: list[Agreement] = []
    kind = "graph" if isinstance(job, RowJob) else "language"
    package = Package(ModelVersion("m", 3, "d", "run", tags={KIND_TAG: kind}), {}, folder)
    check = LiveCheck(job, package, installation, 0.0, told.append)
    partition = Partition(str(folder / "table"), "date", "2026-01-05", "j")
    table = pa.table({"_row": pa.array([], pa.int64())})
    found = check(ScoredRows((), partition, {"f": table}))
    assert told == [found]
    assert found.compared == 0
    return found.reason


def test_a_server_that_is_not_there_is_told_in_a_line(
    tmp_path: Path, closed: int, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "millrace"):
        reason = reason_of(ROWS, tmp_path, closed)
    assert f"no Triton answers at 127.0.0.1:{closed}" in reason
    ((_, level, line),) = caplog.record_tuples
    assert (level, line) == (logging.INFO, f"not compared with the live model: {reason}")


def test_a_server_that_says_nothing_is_not_waited_for(tmp_path: Path, silent: int) -> None:
    assert "no answer in time" in reason_of(ROWS, tmp_path, silent)


def test_answers_that_are_drawn_are_not_compared(tmp_path: Path, closed: int) -> None:
    assert reason_of(DRAWN, tmp_path, closed) == "its answers are sampled at random"
