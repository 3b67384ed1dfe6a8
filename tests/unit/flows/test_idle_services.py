"""Services that wait load only what they wait with, because they keep it for ever."""

import os
import subprocess
import sys
from pathlib import Path

from tests.unit.flows.test_quick_commands import LARGE, TABLES

SETTINGS = """
import sys
from millrace.flows import tool_variables
from millrace.flows.settings import load
settings = tool_variables.apply(load())
"""
SUPERVISOR = """
from millrace.flows.services.supervisor import Supervisor, local_services
services = local_services(settings)
Supervisor(settings, services)
for each in services:
    each.clean_up()
"""
DEPLOYMENTS = """
from prefect.runner import Runner
from millrace.flows.deployments import serve
from millrace.flows.deployments.deployment_specs import plan_deployments
specs = plan_deployments(settings.pipeline_files(), settings.deployments)
assert len(specs) > 2
for each in specs:
    serve.build_deployment(each)
    serve._read_flow_name(each.entrypoint)
"""


def _loaded_by(program: str, folder: Path) -> set[str]:
    """Run a program with the settings of a new home and one pipeline; return what it loaded."""
    (folder / "pipeline.yaml").write_text("name: t\ndataset: {source: rows.csv, target: y}\n")
    done = subprocess.run(
        [sys.executable, "-c", f"{SETTINGS}{program}\nprint(*sys.modules)"],
        env={
            **os.environ,
            "MILLRACE_HOME": str(folder / "home"),
            "MILLRACE_PIPELINES": str(folder / "pipeline.yaml"),
        },
        capture_output=True,
        text=True,
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr
    return (LARGE | TABLES | {"grpc", "tritonclient"}) & set(done.stdout.split())


def test_the_supervisor_loads_nothing_large(tmp_path: Path) -> None:
    assert _loaded_by(SUPERVISOR, tmp_path) == set()


def test_the_deployments_load_prefect_only(tmp_path: Path) -> None:
    assert _loaded_by(DEPLOYMENTS, tmp_path) == {"prefect"}
