"""Ingestions are killed anywhere, and run again. A short form is a test.

    python -m tests.chaos.ingest_kills [KILLS]

After each kill the newest snapshot must be whole: the one before, or the new one. The rerun must
end well, with the rows that a full reading gives.
"""

import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from millrace.models.common.errors import InputError
from millrace.models.common.installation import Installation
from millrace.models.config.pipeline import Pipeline
from millrace.models.data import snapshots
from millrace.models.data.ingest import ingest
from millrace.models.data.part_store import read_manifest
from millrace.models.data.split import Digest, hash_rows

ROWS = 60_000
VALUES = {"name": "t", "dataset": {"source": "*.parquet", "target": "y"}}
JOB = """
import sys
from pathlib import Path
from tests.chaos.ingest_kills import pipeline_of, ingest
print("begins", flush=True)
ingest(*pipeline_of(Path(sys.argv[1]), sys.argv[2]))
"""


def pipeline_of(folder: Path, home: str) -> tuple[Pipeline, Installation]:
    """Return what to ingest, and where to."""
    pipeline = Pipeline.model_validate(VALUES).with_folder(folder / "in")
    return pipeline, Installation(folder / home, "", str(folder / home / "tables"))


def write_file(file: Path, generator: np.random.Generator) -> None:
    """Write rows with two classes."""
    x = generator.normal(size=(ROWS, 6))
    columns = {f"x{number}": x[:, number] for number in range(6)}
    pq.write_table(pa.table({**columns, "y": (x[:, 0] > 0).astype(np.int64)}), file)


def digest_of(snapshot: snapshots.Snapshot) -> str:
    """Return the digest of the rows that a reader sees."""
    digest, names = Digest(), [column.name for column in snapshot.schema.columns]
    for batch in snapshots.scan(snapshot, columns=names):
        digest.update(hash_rows(batch.select(names)))
    return digest.hexdigest()


def soak(folder: Path, kills: int) -> Iterator[str]:
    """Kill so many ingestions, and yield a line for each; an assertion fails at the first fault."""
    chance, generator = random.Random(0), np.random.default_rng(0)
    source = folder / "in"
    source.mkdir()
    for number in range(3):
        write_file(source / f"{number:03d}.parquet", generator)
    began = time.perf_counter()
    ingest(*pipeline_of(folder, "home"))
    whole = time.perf_counter() - began
    for count in range(kills):
        files = sorted(source.iterdir())
        if len(files) > 5:
            chance.choice(files[1:]).unlink()
        write_file(source / f"{count + 3:03d}.parquet", generator)
        if chance.random() < 0.3:
            write_file(files[1], generator)
        seconds = chance.random() * 2 * whole
        killed = kill_ingestion(folder, seconds)
        seen = require_whole(folder)
        made = ingest(*pipeline_of(folder, "home"))
        assert digest_of(made) == made.digest
        subprocess.run(["rm", "-rf", str(folder / "full")], check=True)
        full = ingest(*pipeline_of(folder, "full"))
        assert (made.digest, made.rows) == (full.digest, full.rows)
        assert read_manifest(made) == read_manifest(full)
        what = "killed" if killed else "it had ended"
        yield f"{count + 1}: {what} after {seconds:.2f} s, version {seen} seen; again: well"


def kill_ingestion(folder: Path, seconds: float) -> bool:
    """Start an ingestion and kill it after so many seconds; return whether it was still at work."""
    command = [sys.executable, "-c", JOB, str(folder), "home"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begins\n"
        time.sleep(seconds)
        killed = process.poll() is None
        process.kill()
    return killed


def require_whole(folder: Path) -> int:
    """Check that the newest snapshot has the rows that it says, and return its version."""
    _, installation = pipeline_of(folder, "home")
    try:
        snapshot = snapshots.open_snapshot(installation, "t")
    except InputError as error:
        raise AssertionError(f"there is no snapshot: {error}") from error
    assert digest_of(snapshot) == snapshot.digest
    return snapshot.version


def main(words: list[str]) -> None:
    """Run the soak."""
    with tempfile.TemporaryDirectory() as folder:
        for line in soak(Path(folder).resolve(), int(words[0]) if words else 50):
            print(line, flush=True)  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1:])
