"""What is read from a flow's source is what Prefect stores of the flow itself."""

from pathlib import Path

import pytest
from prefect import Flow
from prefect.deployments.runner import RunnerDeployment
from prefect.flows import load_flow_from_entrypoint
from prefect.utilities.callables import parameter_schema

from millrace.flows.deployments.deployment_specs import DeploymentSpec, plan_deployments
from millrace.flows.deployments.flow_outline import read_flow_outline
from millrace.flows.deployments.serve import build_deployment
from millrace.flows.settings import DEFAULT_DEPLOYMENTS

FLOWS = """
import os
from pathlib import Path
from prefect import flow, task

WHO = "nobody"

@flow(name="long-name", version="7", description="Said here.")
def told(by: str = WHO, *, days: int | None = None) -> Path: return os

@flow
def plain() -> None: ...

@flow
def typed(file: Path) -> None: ...

@flow
@task
def wrapped() -> None: ...

def no_flow() -> None: ...
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "flows_of_a_test.py").write_text(FLOWS)
    monkeypatch.syspath_prepend(tmp_path)
    return "flows_of_a_test"


def _stored(flow: "Flow[..., object]") -> tuple[object, ...]:
    return flow.name, flow.version, flow.description, parameter_schema(flow).model_dump()


def _specs(tmp_path: Path) -> tuple[DeploymentSpec, ...]:
    file = tmp_path / "digits.yaml"
    file.write_text("name: digits\ndataset: {source: r.csv, target: y}\n")
    return plan_deployments((file,), DEFAULT_DEPLOYMENTS)


def test_the_outline_of_each_deployed_flow_is_that_of_the_flow(tmp_path: Path) -> None:
    for spec in _specs(tmp_path):
        outline = read_flow_outline(spec.entrypoint)
        assert outline is not None, spec.entrypoint
        assert _stored(outline) == _stored(load_flow_from_entrypoint(spec.entrypoint))


@pytest.mark.parametrize("name", ["told", "plain"])
def test_a_decorator_may_say_a_name_and_a_default_may_be_a_constant(module: str, name: str) -> None:
    outline = read_flow_outline(f"{module}.{name}")
    assert outline is not None
    assert _stored(outline) == _stored(load_flow_from_entrypoint(f"{module}.{name}"))


@pytest.mark.parametrize("name", ["typed", "wrapped", "no_flow", "WHO", "missing"])
def test_other_functions_have_no_outline(module: str, name: str) -> None:
    assert read_flow_outline(f"{module}.{name}") is None


def test_a_file_has_no_outline(tmp_path: Path) -> None:
    assert read_flow_outline(f"{tmp_path}/flows.py:told") is None
    assert read_flow_outline("no_such_module_here.told") is None


def test_a_deployment_is_the_same_with_and_without_an_outline(
    tmp_path: Path, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for spec in (*_specs(tmp_path), DeploymentSpec("typed", f"{module}.typed")):
        quick = build_deployment(spec)
        with monkeypatch.context() as patched:
            patched.setattr("millrace.flows.deployments.serve.read_flow_outline", lambda _: None)
            slow = build_deployment(spec)
        assert isinstance(quick, RunnerDeployment)
        assert quick.model_dump() == slow.model_dump()
        assert quick.entrypoint == spec.entrypoint
