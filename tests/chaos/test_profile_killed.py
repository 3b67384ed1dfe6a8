"""A profile that is killed leaves no server behind."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.integration.planted import good

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the wheel is for Linux")

PROGRAM = """
import sys, time
from pathlib import Path
from millrace.models.common.digest import digest_of
from millrace.models.config.serving_spec import ServingSpec
from millrace.serving.profile.profiled_model import profiled_model
from millrace.serving.triton.graph.triton_graph import artifact_of_graph

file = Path(sys.argv[1])
with profiled_model(artifact_of_graph(file, digest_of(file)), {}) as model:
    model.triton.load(ServingSpec())
    print("loaded", flush=True)
    time.sleep(600)
"""
SECONDS = 10


def test_a_killed_profile_leaves_no_server(tmp_path: Path) -> None:
    file = tmp_path / "model.onnx"
    file.write_bytes(good().model)
    command = [sys.executable, "-c", PROGRAM, str(file)]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "loaded\n"
        started = psutil.Process(process.pid).children(recursive=True)
        assert {"tritonserver", "envoy"} <= {each.name() for each in started}
        process.kill()
    _, left = psutil.wait_procs(started, timeout=SECONDS)
    assert left == []
