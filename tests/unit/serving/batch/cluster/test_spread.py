"""A job that is told that it is spread over a cluster, of one node here."""

from collections.abc import Callable
from pathlib import Path

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millrace.models.common.errors import TransientError
from millrace.models.inference.features import Encoding, Feature
from millrace.serving.batch.commit import Partition
from millrace.serving.batch.input.find_input import open_input
from millrace.serving.batch.row_job import RowJob
from millrace.serving.batch.scoring import RunOptions, Target, score

pytestmark = pytest.mark.usefixtures("local_ray")

ENCODING = Encoding(tuple(Feature(name, "number") for name in "abc"), "t")
FILES, ROWS = 4, 500


@pytest.fixture
def job(tmp_path: Path, write_model: Callable[[Path, int], Path]) -> RowJob:
    """A job whose model gives back the column `a`."""
    model = write_model(tmp_path / "model.onnx", 1)
    return RowJob("m", 7, "digest", model, ENCODING, batch_size=ROWS)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    folder.mkdir()
    for n in range(FILES):
        numbers = pa.array(range(n * ROWS, (n + 1) * ROWS), pa.float64())
        pq.write_table(pa.table([numbers] * 3, ["a", "b", "c"]), folder / f"{n}.parquet")
    return folder


def test_a_resumed_job_scores_what_is_left(
    tmp_path: Path, job: RowJob, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = Target(str(tmp_path / "table"), str(tmp_path / "dead"), "2026-01-05")
    found, how = open_input(str(source), job), RunOptions(is_spread=True)

    def fails(*_: object) -> None:
        raise TransientError("the commit failed")

    with monkeypatch.context() as patched:
        patched.setattr(Partition, "commit", fails)
        with pytest.raises(TransientError, match="the commit failed"):
            score(found, job, target, how)
    written = sorted((tmp_path / "table").glob("date=*/*/*.parquet"))
    written[0].unlink()  # as if a file had not come to be
    report = score(found, job, target, how)
    rows = deltalake.DeltaTable(target.table).to_pyarrow_table()
    assert sorted(rows["prediction"].to_pylist()) == [*range(FILES * ROWS)]
    assert 0 < report.resumed < FILES * ROWS
