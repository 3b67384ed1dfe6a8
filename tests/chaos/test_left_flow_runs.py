"""The flow run of a command that was ended is crashed by its parent or the next command."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx

from millrace.flows.deployments.left_flow_runs import FOLDER

PROGRAM = """
import os, sys
from pathlib import Path
from prefect import flow
from millrace.flows.deployments.left_flow_runs import mark_left_runs, record_flow_run

folder = Path(sys.argv[1])

@flow
def left():
    with record_flow_run(folder):
        mark_left_runs(folder)  # another command, while this one works
        if sys.argv[2] == "killed":
            os._exit(1)

if sys.argv[2] == "looks":
    mark_left_runs(folder)
else:
    left()
"""


def runs(api: str) -> list[Any]:
    body = {"flows": {"name": {"any_": ["left"]}}}
    found = httpx.post(f"{api}/flow_runs/filter", json=body, trust_env=False)
    return list(found.raise_for_status().json())


def process(folder: Path, api: str, does: str) -> int:
    words = [sys.executable, "-c", PROGRAM, str(folder), does]
    environment = os.environ | {"PREFECT_API_URL": api}
    return subprocess.run(words, env=environment, capture_output=True, timeout=120).returncode


def test_a_run_whose_process_is_gone_crashed_and_another_is_left_alone(
    tmp_path: Path, prefect_api: str
) -> None:
    assert process(tmp_path, prefect_api, "finishes") == 0
    assert process(tmp_path, prefect_api, "killed") == 1
    assert sorted(each["state_type"] for each in runs(prefect_api)) == ["COMPLETED", "RUNNING"]
    assert len(list((tmp_path / FOLDER).iterdir())) == 1
    assert process(tmp_path, prefect_api, "looks") == 0
    assert sorted(each["state_type"] for each in runs(prefect_api)) == ["COMPLETED", "CRASHED"]
    assert list((tmp_path / FOLDER).iterdir()) == []
