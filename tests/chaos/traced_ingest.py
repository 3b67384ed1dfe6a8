"""An ingestion of small files by Ray tasks that say on which node they are and how far they got.

    python -m tests.chaos.traced_ingest FOLDER HOME [ADDRESS]

It prints the snapshot as JSON. Without an address it reads in its own process.
"""

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import ray

from millrace.models.common.installation import EMBEDDED, Installation
from millrace.models.config.pipeline import Pipeline
from millrace.models.data import cluster_tasks, parts
from millrace.models.data.ingest import ingest
from millrace.models.data.part_store import read_manifest

VALUES = {"name": "t", "dataset": {"source": "*.csv", "target": "y", "max_quarantine": 0.5}}
SECONDS = 2.0
"""How long a task with all its rows written has not ended, so that its node can be killed then."""
_run = cluster_tasks.run_ingest_task


@dataclass(frozen=True)
class Step:
    """What a task said.

    Attributes:
        node: address of its node.
        attempt: name of this attempt.
        file: name of the file that it reads.
        what: begun, written or ended.
    """

    node: str
    attempt: str
    file: str
    what: str


def steps_in(folder: Path) -> list[Step]:
    """Return what tasks have said so far."""
    return [Step(*file.name.split("--")) for file in (folder / "steps").iterdir()]


def trace_task(task: Any) -> Any:
    """Run a task, and say so."""
    node, attempt = ray.util.get_node_ip_address(), uuid4().hex
    [file] = task.source.local_files()

    def say(what: str) -> None:
        (file.parent / "steps" / f"{node}--{attempt}--{file.name}--{what}").touch()

    say("begun")
    result = _run(task)
    say("written")
    time.sleep(SECONDS)
    say("ended")
    return result


def main(words: Sequence[str]) -> None:
    """Ingest, and print the snapshot."""
    folder, home, address = Path(words[0]), Path(words[1]), (*words[2:], EMBEDDED)[0]
    parts.LARGE_BYTES = 1  # every file is a part, so that there is a task for each
    cluster_tasks.run_ingest_task = trace_task
    installation = Installation(home, "", str(home / "tables"), ray_address=address)
    made = ingest(Pipeline.model_validate(VALUES).with_folder(folder), installation)
    facts = ("digest", "rows", "quarantined", "reasons", "uri")
    values = {name: getattr(made, name) for name in facts}
    values["source"] = read_manifest(made)
    values["statistics"] = {name: each.as_json() for name, each in made.statistics.items()}
    print(json.dumps(values))  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1:])
