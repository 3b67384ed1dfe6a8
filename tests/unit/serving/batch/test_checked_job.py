"""A job that is compared before its commit, from its input to the committed partition."""

from collections.abc import Callable, Mapping
from pathlib import Path

import deltalake
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millrace.models.common.arrays import Array
from millrace.models.common.errors import InputError, WorkError
from millrace.models.inference.features import Encoding, Feature
from millrace.serving.batch.input.find_input import Input, open_input
from millrace.serving.batch.input.row_sample import Check, ScoredRows, read_examples
from millrace.serving.batch.monitoring.agreement import Agreement, require_agreement
from millrace.serving.batch.monitoring.live_model import compare_examples
from millrace.serving.batch.row_job import RowJob
from millrace.serving.batch.scoring import RunOptions, Target, score
from millrace.tasks.kinds.graph.graph_batch import LiveRows

pytestmark = pytest.mark.usefixtures("rows_here")

ENCODING = Encoding(tuple(Feature(name, "number") for name in "abc"), "t")
ROWS = 200
Answer = Callable[[float], float]


@pytest.fixture
def job(tmp_path: Path, write_model: Callable[[Path, int], Path]) -> RowJob:
    """A job whose model gives back the column `a`."""
    path = write_model(tmp_path / "model.onnx", 1)
    return RowJob("m", 7, "digest", path, ENCODING, ("id",))


@pytest.fixture
def found(tmp_path: Path, job: RowJob) -> Input:
    """Rows of which the last three have no `a`."""
    cells = [None if number >= ROWS - 3 else float(number) for number in range(ROWS)]
    columns = {"id": range(ROWS), "a": cells, "b": [0.0] * ROWS, "c": [0.0] * ROWS}
    pq.write_table(pa.table(columns), tmp_path / "r.parquet", row_group_size=64)
    return open_input(str(tmp_path / "r.parquet"), job)


@pytest.fixture
def target(tmp_path: Path) -> Target:
    return Target(str(tmp_path / "table"), str(tmp_path / "table-dead"), "2026-01-05")


def check_with(job: RowJob, answer: Answer, most: float) -> Check:
    """Compare with a live model that answers so to `a`."""

    def ask(request: Mapping[str, Array], seconds: float) -> Mapping[str, Array]:
        live = np.array([[answer(float(request["features"][0, 0]))]], np.float32)
        return {"prediction": live}

    def check(scored: ScoredRows) -> Agreement:
        live = LiveRows(job, ask)
        sample = list(read_examples(scored, job.columns, live.answers, 64))
        differences, reason = compare_examples(live, sample, 60)
        agreement = Agreement.of(differences, len(sample), endpoint="fake", reason=reason)
        require_agreement(agreement, most, job.model, job.version)
        return agreement

    return check


def test_a_job_that_answers_as_the_live_model_says_so_in_its_commit(
    job: RowJob, found: Input, target: Target
) -> None:
    report = score(found, job, target, RunOptions(), check=check_with(job, lambda a: a, 0.0))
    assert report.agreement is not None
    assert (report.agreement.compared, report.agreement.disagreed) == (64, 0)
    assert report.agreement.largest == 0.0
    again = score(found, job, target, RunOptions(), check=check_with(job, lambda a: -1, 0.0))
    assert (again.unchanged, again.agreement) == (True, report.agreement)


def test_a_job_that_answers_otherwise_is_not_committed_and_a_higher_limit_takes_it_up(
    job: RowJob, found: Input, target: Target
) -> None:
    def other_from_100(a: float) -> float:
        return a if a < 100 else a + 1

    with pytest.raises(InputError, match="answers differ from those of the live m version 7"):
        score(found, job, target, RunOptions(), check=check_with(job, other_from_100, 0.05))
    assert not deltalake.DeltaTable.is_deltatable(target.table)
    assert not deltalake.DeltaTable.is_deltatable(target.dead_letters)
    report = score(found, job, target, RunOptions(), check=check_with(job, other_from_100, 0.6))
    assert (report.resumed, report.scored, report.dead) == (ROWS - 3, ROWS - 3, 3)
    assert report.agreement is not None
    assert report.agreement.share == pytest.approx(0.5, abs=0.05)
    assert report.agreement.largest == 1.0


def test_a_job_is_committed_although_its_live_model_goes_away(
    job: RowJob, found: Input, target: Target
) -> None:
    def gone(_: float) -> float:
        raise WorkError("it is gone")

    report = score(found, job, target, RunOptions(), check=check_with(job, gone, 0.0))
    assert report.scored == ROWS - 3
    assert str(report.agreement) == "not compared with the live model: it is gone"
