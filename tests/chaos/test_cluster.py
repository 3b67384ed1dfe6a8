"""Batch jobs on a cluster of two nodes, of which one dies; by flows, of which one dies too."""

import json
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import deltalake
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millrace.models.common.errors import InputError
from millrace.models.common.installation import Installation
from millrace.models.registry.tracking import client
from millrace.models.registry.version_files import CHAMPION
from millrace.serving.batch.input.find_input import open_input
from tests.chaos.ray_cluster import Cluster, cluster_of_two
from tests.integration.conftest import Done, Home
from tests.integration.planted import LABELS, WIDTH, busy, ingest_rows, plant, softmax, weights_of
from tests.integration.planted import SEED as WEIGHTS

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="the addresses of the nodes are Linux's"),
    pytest.mark.timeout(600),
]

NAME, FILES, ROWS = "planted", 20, 1000
SECONDS = 120


@dataclass
class Stage:
    """A model that takes its time, rows for it, and a cluster to score them on.

    Attributes:
        home: with the model.
        cluster: of two nodes.
        rows: what is scored, in the order of the input.
        days: dates that were given.
    """

    home: Home
    cluster: Cluster
    rows: np.ndarray
    days: list[str] = field(default_factory=list)

    @property
    def tables(self) -> Path:
        return self.home.path / "tables" / "predictions" / NAME

    def day(self) -> str:
        """Return a date that no test has had."""
        self.days.append(f"2026-01-{len(self.days) + 1:02d}")
        return self.days[-1]

    def words(self, day: str, source: str = "in") -> tuple[str, ...]:
        folder = self.home.path
        words = ("score", folder / f"{NAME}.yaml", "--input", folder / source, "--date", day)
        return (*map(str, words), "--json")

    def start(self, day: str) -> "subprocess.Popen[str]":
        return self.home.start(*self.words(day), env=dict(self.cluster.client))

    def run(self, day: str, source: str = "in", **variables: str) -> Done:
        words = self.words(day, source)
        return self.home.run(*words, env=dict(self.cluster.client) | variables)

    def files(self, day: str) -> int:
        """Return how many files of a day are written."""
        return len(list(self.tables.glob(f"date={day}/*/*.parquet")))

    def complete(self, day: str) -> int:
        """Return how many files of a day are complete: their checkpoints no longer pend."""
        files = self.tables.glob(f"_jobs/date={day}/*/checkpoints/*/*.parquet")
        return sum(".pending" not in file.name for file in files)

    def jobs(self, day: str) -> list[dict[str, Any]]:
        """Return the jobs that were submitted for a day."""
        return [j for j in self.cluster.jobs() if j["metadata"].get("millrace.date") == day]

    def require_every_row_once(self, day: str) -> None:
        table = deltalake.DeltaTable(self.tables).to_pyarrow_table(filters=[("date", "=", day)])
        table = table.sort_by("_row")
        positions = np.repeat(np.arange(FILES) * 2**40, ROWS) + np.tile(np.arange(ROWS), FILES)
        assert table["_row"].to_pylist() == positions.tolist()
        best = softmax(self.rows @ weights_of(WEIGHTS)).argmax(axis=1)
        assert table["prediction"].to_pylist() == [LABELS[each] for each in best]


@pytest.fixture(scope="module")
def stage(
    tmp_path_factory: pytest.TempPathFactory, make: Callable[[Path], Home]
) -> Iterator[Stage]:
    home = make(tmp_path_factory.mktemp("cluster") / "home")
    uri = f"sqlite:///{home.path}/mlflow.db"
    installation = Installation(home.path, uri, str(home.path / "tables")).prepared()
    ingest_rows(installation, NAME)
    planted = plant(installation, NAME, busy(512, 30, depends=True))
    client(uri).set_registered_model_alias(NAME, CHAMPION, str(planted.number))
    (home.path / f"{NAME}.yaml").write_text(
        textwrap.dedent(
            f"""
            name: {NAME}
            dataset: {{source: rows.jsonl, target: t}}
            batch: {{batch_size: 250}}
            """
        )
    )
    rows = np.random.default_rng(5).normal(size=(FILES * ROWS, WIDTH)).astype(np.float32)
    (home.path / "in").mkdir()
    for n, part in enumerate(np.split(rows, FILES)):
        pq.write_table(pa.table({"v": list(part)}), home.path / "in" / f"{n:02d}.parquet")
    with cluster_of_two() as cluster:
        yield Stage(home, cluster, rows)


def until(there: Callable[[], bool], flow: "subprocess.Popen[str]") -> None:
    """Wait for something while a flow runs."""
    deadline = time.monotonic() + SECONDS
    while not there():
        assert flow.poll() is None, flow.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_job_ends_well_though_a_node_dies(stage: Stage) -> None:
    day, second = stage.day(), stage.cluster.nodes[-1]
    flow = stage.start(day)
    until(lambda: any("MapWorker" in t and "submit" in t for t in second.titles()), flow)
    second.kill()
    assert stage.files(day) < FILES
    out, said = flow.communicate(timeout=SECONDS)
    assert flow.returncode == 0, said
    assert json.loads(out)["scored"] == FILES * ROWS
    stage.require_every_row_once(day)
    again = stage.run(day)
    assert again.json["unchanged"]


def test_a_flow_that_is_killed_is_taken_up_by_the_next(stage: Stage) -> None:
    day = stage.day()
    flow = stage.start(day)
    until(lambda: stage.files(day) > 0, flow)
    flow.kill()
    flow.communicate()
    done = stage.run(day)
    assert done.code == 0, done.err
    assert "following the job" in done.err
    assert len(stage.jobs(day)) == 1
    stage.require_every_row_once(day)


def test_a_flow_that_is_ended_ends_its_job_and_the_next_goes_on_from_there(stage: Stage) -> None:
    day = stage.day()
    flow = stage.start(day)
    until(lambda: stage.complete(day) > 0, flow)
    flow.send_signal(signal.SIGTERM)  # as Prefect does where a run is cancelled
    _, said = flow.communicate(timeout=SECONDS)
    assert flow.returncode == 128 + signal.SIGTERM
    assert "is stopped; the rows that it had scored are kept" in said
    assert [job["status"] for job in stage.jobs(day)] == ["STOPPED"]
    done = stage.run(day)
    assert 0 < done.json["resumed"] < FILES * ROWS
    stage.require_every_row_once(day)


def test_what_is_wrong_with_the_input_is_told_as_it_is_here(stage: Stage) -> None:
    done = stage.run(stage.day(), "nowhere.parquet")
    with pytest.raises(InputError) as here:
        open_input(str(stage.home.path / "nowhere.parquet"), None)  # type: ignore[arg-type]
    assert done.code == 2, done.err
    assert done.json == here.value.as_dict()


def test_a_wrong_token_is_the_users_error(stage: Stage) -> None:
    done = stage.run(stage.day(), RAY_AUTH_TOKEN="f" * 32)
    assert done.code == 2
    assert "RAY_AUTH_TOKEN" in done.json["next"]


def test_no_job_leaves_anything_of_its_own(stage: Stage) -> None:
    titles = stage.cluster.nodes[0].titles()
    assert not [title for title in titles if "MapWorker" in title or "JobSupervisor" in title]
    assert not list((stage.tables / "_jobs").glob("*.json"))
