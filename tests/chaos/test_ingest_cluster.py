"""An ingestion on a cluster of two nodes, of which one dies with its rows written."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from deltalake import DeltaTable

from tests.chaos.ray_cluster import HEAD, SECOND, Cluster, cluster_of_two
from tests.chaos.traced_ingest import Step, steps_in

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="the addresses of the nodes are Linux's"),
    pytest.mark.timeout(600),
]

FILES, ROWS = 20, 3000


def write_files(folder: Path) -> None:
    """Write files with bad rows, with nulls, and each with a category of its own."""
    (folder / "steps").mkdir(parents=True)
    generator = np.random.default_rng(0)
    for number in range(FILES):
        x = generator.normal(size=ROWS)
        lines = [f"{v:.4f},{'no' if v < 0 else 'yes'},c{number if v > 1 else 0}" for v in x]
        lines[5], lines[6] = ",yes,c0", "ragged"
        (folder / f"{number:02d}.csv").write_text("\n".join(["x,y,c", *lines]) + "\n")


def start(folder: Path, home: Path, cluster: Cluster | None = None) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "tests.chaos.traced_ingest", str(folder), str(home)]
    variables: Mapping[str, str] = {}
    if cluster:
        command.append(f"{HEAD}:{cluster.ports[0]}")
        variables = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": cluster.token}
    return subprocess.Popen(
        command,
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def result_of(process: "subprocess.Popen[str]") -> dict[str, Any]:
    out, err = process.communicate()
    assert process.returncode == 0, err
    made: dict[str, Any] = json.loads(out.splitlines()[-1])
    return made


def unfinished(steps: list[Step], node: str) -> set[str]:
    """Return the files that a node has written the rows of and not ended."""
    ended = {step.attempt for step in steps if step.what == "ended"}
    written = {s for s in steps if s.node == node and s.what == "written"}
    return {step.file for step in written if step.attempt not in ended}


def test_a_node_that_dies_changes_nothing_in_the_snapshot(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    write_files(folder)
    here = result_of(start(folder, tmp_path / "here"))
    assert steps_in(folder) == []
    with cluster_of_two() as cluster:
        process = start(folder, tmp_path / "there", cluster)
        while True:
            steps = steps_in(folder)
            lost = unfinished(steps, SECOND)
            has_ended = {step.node for step in steps if step.what == "ended"}
            if lost and has_ended == {HEAD, SECOND}:
                cluster.nodes[-1].kill()
                break
            assert process.poll() is None, process.communicate()
            time.sleep(0.05)
        lost = unfinished(steps_in(folder), SECOND)
        there = result_of(process)
    steps = steps_in(folder)
    assert lost
    assert lost <= {step.file for step in steps if step.node == HEAD and step.what == "ended"}
    require_same(here, there)
    require_only_named_files(there, tmp_path / "there")


def require_same(here: dict[str, Any], there: dict[str, Any]) -> None:
    """Check that two snapshots have the same rows, and bad rows, and know the same of them."""
    tables = [DeltaTable(made.pop("uri")) for made in (here, there)]
    assert here == there
    assert here["rows"] == FILES * (ROWS - 2)
    assert here["quarantined"] == 2 * FILES
    ours, theirs = (table.to_pyarrow_dataset() for table in tables)
    assert ours.to_table().sort_by("_key").equals(theirs.to_table().sort_by("_key"))
    quarantines = [table.table_uri.replace("datasets", "quarantine") for table in tables]
    bad = [DeltaTable(uri).to_pyarrow_dataset().to_table(["reason", "row"]) for uri in quarantines]
    by = [("reason", "ascending"), ("row", "ascending")]
    assert bad[0].sort_by(by).equals(bad[1].sort_by(by))


def require_only_named_files(made: dict[str, Any], home: Path) -> None:
    """Check that the attempts that were lost have left nothing."""
    table = home / "tables" / "datasets" / "t"
    listed = {Path(uri).name for uri in DeltaTable(str(table)).file_uris()}
    assert {file.name for file in table.glob("*.parquet")} == listed
    assert list((home / "staging").iterdir()) == []
