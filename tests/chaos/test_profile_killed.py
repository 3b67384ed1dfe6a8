"""A profile that is killed leaves no server behind."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from millrace.flows.services.processes import is_running
from millrace.models.common.own_folder import remove_left_behind
from millrace.serving.triton import server
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


@contextmanager
def profile(tmp_path: Path) -> Iterator[tuple[psutil.Process, list[psutil.Process]]]:
    """Run a profile that has loaded its model, and yield its process and those of its Triton."""
    file = tmp_path / "model.onnx"
    file.write_bytes(good().model)
    command = [sys.executable, "-c", PROGRAM, str(file)]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "loaded\n"
        this = psutil.Process(process.pid)
        started = this.children(recursive=True)
        assert {"tritonserver", "envoy"} <= {each.name() for each in started}
        yield this, started
        process.kill()


def test_a_killed_profile_leaves_no_server(tmp_path: Path) -> None:
    with profile(tmp_path) as (_, started):
        pass
    _, left = psutil.wait_procs(started, timeout=SECONDS)
    assert left == []


def test_stubs_and_shared_memory_that_outlived_their_triton_go_with_the_folder(
    tmp_path: Path,
) -> None:
    with profile(tmp_path) as (process, started):
        (folder,) = tmp_path.glob("millrace-profile-*")
        regions = list(server.SHARED_MEMORY.glob(f"{server._home_prefix(folder)}*"))
        stubs = [each for each in started if each.name().startswith("triton_python")]
        assert regions
        assert stubs
        for each in stubs:
            each.suspend()  # one that hangs does not see that its Triton has ended
        for each in (process, *(each for each in started if each.name() == "tritonserver")):
            each.kill()
        _, left = psutil.wait_procs(started, timeout=2)
        assert left == stubs
        remove_left_behind(
            tmp_path, "millrace-profile-", time.time() + 3600, server.remove_shared_memory
        )
    assert not any(is_running(each) for each in stubs)
    assert not any(each.exists() for each in regions)
    assert not folder.exists()
