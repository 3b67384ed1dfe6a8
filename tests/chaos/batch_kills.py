"""`make soak`, second part: batch jobs are killed anywhere, and run again. A short form is a test.

    python -m tests.chaos.batch_kills [KILLS] [ROWS]

After each kill the job is run again. Then every row must be in the output once, or dead, with the
prediction that the undisturbed run gave it.
"""

import hashlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import deltalake
import numpy as np
import psutil
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from onnx import TensorProto, helper

from millrace.models.common.arrays import Array
from millrace.models.inference.features import Encoding, Feature
from millrace.models.ray.cluster import connect_to_ray
from millrace.serving.batch.beside_online.pause_file import Wait, go_on
from millrace.serving.batch.commit import Partition
from millrace.serving.batch.input.find_input import open_input
from millrace.serving.batch.monitoring.batch_report import BatchReport
from millrace.serving.batch.row_job import RowJob, Scorer
from millrace.serving.batch.scoring import RunOptions, Target, score
from tests.integration.graphs import proto

DATE = "2026-01-05"
BAD = 1000
"""One row of so many has no value in a column that may not miss any."""
HIDDEN = 2048
"""Width of what the model works out in vain, or all would be done before a kill."""
PAUSE = "pause"
"""File with the seconds that the model sleeps in each call; 0: it does not sleep."""
MANY = 10
"""Files of an input, one piece each at least."""
PROCESSES = {"actor": "MapWorker", "write": "ray::Write", "raylet": "raylet/raylet"}
"""What is killed, by a part of the first word of its command line."""
KILLS = ("driver", *PROCESSES, "before the commit", "after the commit")


CALLS = "calls"
"""Folder with a file of each worker: the rows of each call of its model, little-endian int64."""


@dataclass(frozen=True)
class Counted(RowJob):
    """A job that counts what its models are asked.

    Attributes:
        calls: the folder `CALLS`.
        pause: seconds that each call sleeps.
    """

    calls: Path = Path()
    pause: float = 0.0

    def worker(self, wait: Wait = go_on) -> Scorer:
        """Open a session whose calls are counted."""
        scorer = Scorer(self, wait)
        answer, file = scorer.session.answer, self.calls / uuid4().hex

        def counted(rows: Array) -> Array:
            with file.open("ab") as opened:
                opened.write(np.int64(len(rows)).tobytes())
            time.sleep(self.pause)
            return answer(rows)

        scorer.session.answer = counted  # type: ignore[method-assign]
        return scorer


def asked(folder: Path) -> int:
    """Return how many rows the models of all runs in a folder were asked, lost ones as well."""
    files = (folder / CALLS).iterdir()
    return sum(int(np.frombuffer(file.read_bytes(), np.int64).sum()) for file in files)


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Attributes:
        code: of its process, negative for a signal.
        was_killed: whether what was to be killed was there to be killed.
        resumed: rows that an earlier run had written; None where the run did not end well.
        written: rows that were written when the kill came.
        said: what it printed.
    """

    code: int
    was_killed: bool
    resumed: int | None
    written: int
    said: str


def prepare(folder: Path, rows: int, files: int = MANY, pause: float | None = None) -> None:
    """Write an input and a model that gives back its first column.

    Args:
        folder: where to.
        rows: of the input.
        files: that they are in; actors read many for themselves, and few are read by tasks.
        pause: seconds for which the model sleeps in each call of a thousand rows, so that a job
            lasts as long on every machine and leaves it to others; None: it works instead.
    """
    numbers = np.random.default_rng(0).normal(size=rows)
    ones = pa.array(np.ones(rows), mask=np.arange(rows) % BAD == BAD // 2)
    table = pa.table({"id": np.arange(rows), "a": numbers, "b": ones})
    (folder / "in").mkdir()
    (folder / CALLS).mkdir()
    each = -(-rows // files)
    for number in range(files):
        part = table.slice(number * each, each)
        pq.write_table(part, folder / f"in/{number}.parquet", row_group_size=max(rows // 20, 1))
    (folder / "model.onnx").write_bytes(_network(HIDDEN if pause is None else 1))
    (folder / PAUSE).write_text(str(pause or 0.0))


def _network(width: int) -> bytes:
    """Return a model whose answer is its first feature, and nothing times the work of a width."""
    steps = (
        ("Gather", ["features", "first"], "given", {"axis": 1}),
        ("MatMul", ["features", "widen"], "wide", {}),
        ("MatMul", ["wide", "square"], "worked", {}),
        ("MatMul", ["worked", "nothing"], "zero", {}),
        ("Add", ["given", "zero"], "answers", {}),
    )
    nodes = [helper.make_node(kind, read, [gives], **more) for kind, read, gives, more in steps]
    chance = np.random.default_rng(0)
    held = [
        ("first", np.array([0], np.int64)),
        ("widen", chance.normal(size=(2, width)).astype(np.float32)),
        ("square", chance.normal(size=(width, width)).astype(np.float32)),
        ("nothing", np.zeros((width, 1), np.float32)),
    ]
    ends = (("features", 2), ("answers", 1))
    read, gives = ((name, TensorProto.FLOAT, ["rows", width]) for name, width in ends)
    return proto(nodes, [read], [gives], held)


def run(folder: Path, kill: str | None = None, share: float = 0.0) -> Outcome:
    """Run the job of a folder in a process, and kill something of it.

    Args:
        folder: that `prepare` filled.
        kill: of `KILLS`; None for nothing.
        share: of the rows, after which.
    """
    words = [sys.executable, "-m", "tests.chaos.batch_kills", "job", str(folder), kill or ""]
    rows = ds.dataset(folder / "in").count_rows()
    said, written = [], 0
    was_killed = kill is not None and "commit" in kill
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            said.append(line)
            if line.startswith("written "):
                if not was_killed:
                    written = int(line.split()[1])
                if kill and not was_killed and written and written >= share * rows:
                    was_killed = _kill(process.pid, kill)
    ends = [line for line in said if line.startswith("resumed ")]
    resumed = int(ends[-1].split()[1]) if ends else None
    return Outcome(process.returncode, was_killed, resumed, written, "".join(said))


def _kill(driver: int, kill: str) -> bool:
    parent = psutil.Process(driver)
    if kill == "driver":
        parent.kill()
        return True
    for child in parent.children(recursive=True):
        try:
            name = (child.cmdline() or [""])[0]
            if PROCESSES[kill] in name:
                child.kill()
                return True
        except psutil.Error:
            continue
    return False


def content(folder: Path) -> tuple[int, int, str]:
    """Return rows, rows without those that are there twice, and a digest in their order."""
    table = deltalake.DeltaTable(folder / "out").to_pyarrow_table().sort_by("_row")
    said = zip(*(table[name].to_pylist() for name in ("_key", "prediction")), strict=True)
    digest = hashlib.sha256("\n".join(map(str, said)).encode()).hexdigest()
    return table.num_rows, len(set(table["_row"].to_pylist())), digest


def dead(folder: Path) -> list[int]:
    """Return the keys of the dead rows."""
    table = deltalake.DeltaTable(folder / "dead").to_pyarrow_table()
    return sorted(int(key) for key in table["_key"].to_pylist())


def leftovers(folder: Path) -> list[str]:
    """Return what jobs left that the table does not name, but for what is kept of its job."""
    uris = [Path(uri) for uri in deltalake.DeltaTable(folder / "out").file_uris()]
    named = {uri.name for uri in uris} | {f"{uri.parent.name}.json" for uri in uris}
    files = (file for file in (folder / "out").rglob("*") if file.is_file())
    return sorted(str(f) for f in files if f.name not in named and "_delta_log" not in f.parts)


def _job(folder: Path, moment: str) -> None:
    """Run the job; a kill at the commit is by itself."""
    commit = vars(Partition)["commit"]

    def dying(partition: Partition, *given: Any, **named: Any) -> int:
        if moment == "before the commit":
            os.kill(os.getpid(), signal.SIGKILL)
        version: int = commit(partition, *given, **named)
        os.kill(os.getpid(), signal.SIGKILL)
        return version

    if "commit" in moment:
        Partition.commit = dying  # type: ignore[method-assign]
    report = answer(folder, 7, _tell, actors=2)
    print(f"resumed {report.resumed}", flush=True)  # noqa: T201


def answer(folder: Path, version: int, on_work: Any = None, actors: int = 1) -> BatchReport:
    """Score the rows of a folder.

    Args:
        folder: that `prepare` filled.
        version: of the model, so that it is another job.
        on_work: called while it runs.
        actors: that answer.
    """
    encoding = Encoding((Feature("a", "number"), Feature("b", "number")), "t")
    model = folder / "model.onnx"
    named = ("m", version, "digest", model, encoding, ("id",))
    pause = float((folder / PAUSE).read_text())
    job = Counted(*named, batch_size=1000, calls=folder / CALLS, pause=pause)
    target = Target(str(folder / "out"), str(folder / "dead"), DATE)
    with connect_to_ray("local", actors):
        found = open_input(str(folder / "in"), job)
        return score(
            found, job, target, RunOptions(num_actors=actors), on_work or (lambda *_: None)
        )


def _tell(sample: Any, *_: Any) -> None:
    print(f"written {sample.work.rows}", flush=True)  # noqa: T201


def soak(folder: Path, kills: int, rows: int) -> Iterator[str]:
    """Kill so many jobs, and yield a line for each; an assertion fails at the first loss."""
    folders = [folder / "many", folder / "one"]
    for place, files in zip(folders, (MANY, 1), strict=True):
        place.mkdir()
        prepare(place, rows, files)
    assert run(folders[0]).code == 0
    undisturbed, wrong = content(folders[0]), dead(folders[0])
    chance, counted = random.Random(0), 0
    while counted < kills:
        folder = folders[counted // len(KILLS) % len(folders)]
        for name in ("out", "dead"):
            subprocess.run(["rm", "-rf", folder / name], check=True)
        kill = KILLS[counted % len(KILLS)]
        # Actors have done their work some time before the last row is written.
        first = run(folder, kill, chance.random() * (0.2 if kill == "actor" else 0.9))
        again = run(folder)
        assert again.code == 0, again.said
        assert content(folder) == undisturbed, (kill, first.said, again.said)
        assert dead(folder) == wrong
        assert leftovers(folder) == []
        counted += first.was_killed
        came = "killed" if first.was_killed else "nothing there to kill"
        yield (
            f"{counted} {kill}, {folder.name}: {came} at "
            f"{first.written:,} of {rows:,} rows, ended with {first.code}; again: "
            f"{again.resumed:,} rows resumed, all of them once"
        )


def main(words: list[str]) -> None:
    """Run the job of a folder, or the soak."""
    if words[:1] == ["job"]:
        _job(Path(words[1]), words[2])
        return
    kills, rows = (int(word) for word in [*words, *("100", "200000")[len(words) :]])
    with tempfile.TemporaryDirectory() as folder:
        for line in soak(Path(folder), kills, rows):
            print(line, flush=True)  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1:])
