"""`make soak`: nights of new rows, `clean` and `forget`, beside readers and a running job.

    python -m tests.chaos.retention_crowd [NIGHTS] [READERS]

Every night the table grows by 1%, a version is registered, retention removes what is old, and a key
is forgotten. Readers read the newest snapshot and the one before all the time, and a job keeps its
snapshot open for nights: none may fail. At the end nothing forgotten may be in any file, and
aliases, versions within their retention and lineage must answer.
"""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from millrace.flows.cli.lineage import _read_sources, _read_version
from millrace.models.common.errors import InputError
from millrace.models.common.installation import Installation
from millrace.models.config.pipeline import Pipeline
from millrace.models.data.ingest import ingest
from millrace.models.data.snapshots import Snapshot, open_snapshot, scan
from millrace.models.registry.tracking import client, tracked_run
from millrace.models.registry.version_retention import StoredRuns
from millrace.tasks.retention.clean import clean
from millrace.tasks.retention.forget import forget

FILES, ROWS = 20, 5_000
"""Files of the first night, and rows of each; every night adds a fifth of a file."""
KEPT = {"versions": 3, "snapshots": 3, "artifacts": 1, "staging": 1}
VALUES = {
    "name": "t",
    "dataset": {"source": "*.parquet", "target": "y", "key": ["id"]},
    "retention": KEPT,
}
JOB = """
import sys, time
from pathlib import Path
from tests.chaos.retention_crowd import installation_of, open_snapshot, scan
from millrace.models.data.snapshot_use import hold_snapshot
snapshot = open_snapshot(installation_of(Path(sys.argv[1])), "t", int(sys.argv[2]))
with hold_snapshot(snapshot.uri, snapshot.version):
    print("holds", flush=True)
    sys.stdin.readline()
    rows = sum(batch.num_rows for batch in scan(snapshot))
print(rows, flush=True)
"""


def installation_of(folder: Path) -> Installation:
    """Return the home in a folder."""
    home = folder / "home"
    return Installation(home, f"sqlite:///{home}/mlflow.db", str(home / "tables"))


@dataclass
class Crowd:
    """Readers of a table, who note what goes wrong.

    Attributes:
        uri: the table.
        looks: number of times that somebody has read it.
        faults: what went wrong.
    """

    uri: str
    looks: int = 0
    faults: list[str] = field(default_factory=list)
    _ended: Event = field(default_factory=Event)

    @contextmanager
    def reading(self, readers: int) -> Iterator[None]:
        """Read while the block runs."""
        threads = [Thread(target=self._read) for _ in range(readers)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._ended.set()
            for thread in threads:
                thread.join()

    def _read(self) -> None:
        opened = DeltaTable(self.uri)
        while not self._ended.is_set():
            try:
                # What was opened a look ago is read now: its version may have been replaced.
                rows = opened.to_pyarrow_dataset().to_table(columns=["id", "x0"])
                if rows.num_rows < FILES * ROWS - 100:
                    self.faults.append(f"only {rows.num_rows:,} rows")
                self.looks += 1
                opened = DeltaTable(self.uri)
            except Exception as error:  # whatever a reader sees is to be reported
                self.faults.append(f"{type(error).__name__}: {error}")


@dataclass(frozen=True)
class Scene:
    """A home whose table grows every night.

    Attributes:
        folder: it holds the source and the home.
    """

    folder: Path

    @property
    def home(self) -> Installation:
        return installation_of(self.folder)

    @property
    def pipeline(self) -> Pipeline:
        return Pipeline.model_validate(VALUES).with_folder(self.folder / "in")

    def write_file(self, number: int, rows: int) -> None:
        """Write rows whose keys no other file has."""
        generator = np.random.default_rng(number)
        x = generator.normal(size=(rows, 4))
        columns: dict[str, Any] = {f"x{n}": x[:, n] for n in range(4)}
        ids = [key_of(number, row) for row in range(rows)]
        table = pa.table({"id": ids, **columns, "y": (x[:, 0] > 0).astype(np.int64)})
        pq.write_table(table, self.folder / "in" / f"{number:03d}.parquet")

    def register(self, snapshot: Snapshot) -> int:
        """Register a version that was trained on a snapshot, with a file of its run."""
        store = client(self.home.tracking_uri)
        with tracked_run(self.home, "t", {}, system_metrics=False) as run:
            run.log_text("weights", "weights.txt")
            run.log_dataset("t", snapshot.uri, snapshot.version, snapshot.digest)
            logged = store.create_logged_model(run.experiment_id, source_run_id=run.run_id)
        if not store.search_registered_models("name = 't'"):
            store.create_registered_model("t")
        tags = {"millrace.digest": "d", "millrace.dataset": f"t version {snapshot.version}"}
        source = f"models:/{logged.model_id}"
        made = store.create_model_version("t", source, run.run_id, tags, model_id=logged.model_id)
        return int(made.version)


class LongJob:
    """A job in a process of its own, which holds a snapshot, and reads it before it ends."""

    def __init__(self, folder: Path, version: int) -> None:
        command = [sys.executable, "-c", JOB, str(folder), str(version)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "holds\n"
        self.rows: int | None = None

    def end(self, _: str = "") -> None:
        """Let it read its snapshot, and wait for its end."""
        if self.rows is None:
            out, _ = self._process.communicate("\n", timeout=60)
            self.rows = int(out)


def key_of(number: int, row: int) -> str:
    """Return the key of a row of a file."""
    return f"customer-{number:03d}-{row:05d}"


def soak(folder: Path, nights: int, readers: int) -> Iterator[str]:
    """Let nights go by, and yield what each left."""
    (folder / "in").mkdir()
    scene = Scene(folder)
    scene.home.prepared()
    for number in range(FILES):
        scene.write_file(number, ROWS)
    first = ingest(scene.pipeline, scene.home)
    scene.register(first)
    one_night = size_of(Path(first.uri))
    store = client(scene.home.tracking_uri)
    store.set_registered_model_alias("t", "champion", "1")
    crowd, forgotten = Crowd(first.uri), list[str]()
    with crowd.reading(readers):
        job = LongJob(folder, first.version)
        for night in range(1, nights + 1):
            scene.write_file(FILES + night, ROWS * FILES // 100)
            number = scene.register(ingest(scene.pipeline, scene.home))
            cleaned = list(clean([scene.pipeline], scene.home))
            if night % 3 == 0:
                forgotten.append(key_of(night % FILES, night))
                found = forget(scene.home, "t", forgotten[-1:], job.end)
                assert sum(each.rows for each in found.tables) == 1, found
                assert job.rows is not None  # forget has waited for it
                assert job.rows >= FILES * ROWS - len(forgotten), job.rows
                job = LongJob(folder, open_snapshot(scene.home, "t").version)
            if night == nights // 2:
                store.set_registered_model_alias("t", "champion", str(number))
            gone = next(each for each in cleaned if each.kind == "snapshots")
            disk = size_of(Path(first.uri)) / one_night
            yield f"night {night}: {disk:.3f} of one night's disk, {len(gone.removed)} removed"
        job.end()
    assert not crowd.faults, crowd.faults[:5]
    assert crowd.looks > readers
    check_what_is_left(scene, nights, forgotten)
    yield f"{crowd.looks:,} looks of {readers} readers, no fault; {len(forgotten)} keys forgotten"


def check_what_is_left(scene: Scene, nights: int, forgotten: list[str]) -> None:
    """Check that aliases, versions and lineage answer, and that no file has a forgotten key."""
    stored = StoredRuns(scene.home.tracking_uri, scene.home.artifacts)
    kept = {each.version: each for each in stored.list_versions()}
    newest = set(range(nights + 2 - KEPT["versions"], nights + 2))
    champion = client(scene.home.tracking_uri).get_model_version_by_alias("t", "champion")
    assert kept.keys() == newest | {int(champion.version)}, sorted(kept)
    for version in kept.values():
        dataset = version.tags["millrace.dataset"]
        snapshot = open_snapshot(scene.home, "t", int(dataset.rpartition(" ")[2]))
        assert sum(batch.num_rows for batch in scan(snapshot)) > 0
    for number in set(range(1, nights + 2)) - kept.keys():
        lost = _read_version(scene.home, "t", number)
        assert "removed" in lost, lost
        sources = _read_sources(scene.home, lost["dataset"])
        assert len(sources["files"]) >= FILES
        try:
            next(scan(open_snapshot(scene.home, "t", int(lost["dataset"].rpartition(" ")[2]))))
        except InputError:
            assert "removed" in sources
    for file in scene.home.home.rglob("*"):
        if file.is_file():
            content = file.read_bytes().decode("latin-1")
            if file.suffix == ".parquet":
                content += str(pq.read_table(file).to_pydict())
            assert not [key for key in forgotten if key in content], file


def size_of(folder: Path) -> int:
    """Return the size of all files in a folder, in bytes."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def main() -> None:
    """Run the nights, and print what each left."""
    nights, readers = (int(each) for each in (*sys.argv[1:], "30", "20")[:2])
    with tempfile.TemporaryDirectory() as folder:
        for line in soak(Path(folder), nights, readers):
            sys.stdout.write(f"{line}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
