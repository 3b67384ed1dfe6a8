"""Runs that lose a worker resume from a checkpoint, and a Ctrl-C ends a run in order."""

import json
import os
import re
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from mlflow import MlflowClient

from millrace.models.common.installation import Installation
from millrace.models.config.pipeline_file import load_pipeline
from millrace.models.data.ingest import ingest
from tests.integration.conftest import EXAMPLES, Home
from tests.integration.test_kinds_on_the_line import TREES, write_rows

pytestmark = pytest.mark.timeout(600)

DIGITS = str(EXAMPLES / "digits.yaml")
QUICK = ("--set", "model.family=mlp", "--set", "model.params={}")
"""A small network, where the network is not what is tested."""
ONE_FORM = ("--set", "export.candidates=[onnx-fp32]")
EPOCHS = 30
"""Each of them lasts until Ray Train has looked at its report, a fifth of a second."""


@dataclass(frozen=True)
class Ingested:
    """A home with a snapshot of the digits.

    Attributes:
        home: of the commands.
        tracking_uri: of its MLflow.
        version: of the snapshot.
    """

    home: Home
    tracking_uri: str
    version: int


@pytest.fixture(scope="module")
def ingested(tmp_path_factory: pytest.TempPathFactory, make: Any) -> Ingested:
    home = make(tmp_path_factory.mktemp("killed") / "home")
    uri = f"sqlite:///{home.path}/mlflow.db"
    installation = Installation(home.path, uri, str(home.path / "tables")).prepared()
    snapshot = ingest(load_pipeline(Path(DIGITS)), installation)
    return Ingested(home, uri, snapshot.version)


def test_a_second_run_makes_no_second_snapshot_and_survives_a_killed_worker(
    ingested: Ingested,
) -> None:
    changes = (*QUICK, "--set", f"training.epochs={EPOCHS}", *ONE_FORM)
    process = ingested.home.start("run", DIGITS, *changes, "--json")
    kill_a_training_worker(process, ingested.home.path / "training", checkpoints=5)
    out, err = process.communicate(timeout=400)
    assert process.returncode == 0, err
    outcome = json.loads(out)
    assert outcome["snapshot"]["created"] is False
    assert outcome["snapshot"]["version"] == ingested.version
    (epoch,) = outcome["recoveries"]
    assert 0 < epoch < EPOCHS
    assert f"resumed from the checkpoint of epoch {epoch}" in err


def test_ctrl_c_ends_a_run_in_order_and_says_so(ingested: Ingested) -> None:
    process = ingested.home.start("run", DIGITS, *QUICK, "--set", "training.epochs=1000")
    wait_for_checkpoints(process, ingested.home.path / "training", count=2)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert "stopped; nothing unfinished was published" in err
    (run, *_) = MlflowClient(ingested.tracking_uri).search_runs(["1"], max_results=1)
    assert run.info.status == "KILLED"
    assert workers_of(os.getpid()) == []


def test_boosting_resumes_from_its_round(tmp_path: Path, new_home: Home) -> None:
    """The trees are flat, so that the many rounds are soon converted."""
    write_rows(tmp_path)
    flat = "params: {n_estimators: 500, max_depth: 1, early_stopping_rounds: 0}"
    file = tmp_path / "trees.yaml"
    file.write_text(re.sub(r"params: \{.*?\}", flat, TREES))
    process = new_home.start("run", str(file), *ONE_FORM, "--json")
    kill_a_training_worker(process, new_home.path / "training", checkpoints=1)
    out, err = process.communicate(timeout=400)
    assert process.returncode == 0, err
    outcome = json.loads(out)
    (resumed,) = outcome["recoveries"]
    assert resumed % 25 == 0
    assert outcome["certificate"]["passed"] is True


def kill_a_training_worker(process: Any, storage: Path, checkpoints: int) -> None:
    """Kill -9 one Ray Train worker of `process` once its run has written some checkpoints."""
    wait_for_checkpoints(process, storage, checkpoints)
    os.kill(workers_of(process.pid)[0], signal.SIGKILL)


def wait_for_checkpoints(process: Any, storage: Path, count: int, deadline_s: float = 300) -> None:
    """Return once a run that was just started has written `count` checkpoints."""
    known = set(storage.glob("*/checkpoint_*"))
    seen: set[Path] = set()
    deadline = time.monotonic() + deadline_s
    while time.monotonic() < deadline and process.poll() is None:
        seen |= set(storage.glob("*/checkpoint_*")) - known
        if len(seen) >= count:
            return
        time.sleep(0.02)
    raise AssertionError("the run ended before it could be disturbed")


def workers_of(pid: int) -> list[int]:
    """Return the Ray Train workers below a process."""
    children = psutil.Process(pid).children(recursive=True)
    return [c.pid for c in children if "RayTrainWorker" in " ".join(c.cmdline())]
