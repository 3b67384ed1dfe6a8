"""The start of a flow is reported until the flow runs, and no longer."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from millrace.flows import flow_start
from millrace.flows.flow_start import run_flow


class StandIn:
    """Stands for a flow: calls its hook when it begins to run."""

    def __init__(self, body: Callable[..., Any], *, runs: bool = True) -> None:
        self.body, self.runs = body, runs
        self.on_running_hooks: list[Callable[..., None]] = []

    def with_options(self, on_running: list[Any]) -> Callable[..., Any]:
        def start(*args: Any, **kwargs: Any) -> Any:
            for hook in on_running if self.runs else ():
                hook(flow=None, flow_run=None, state=None)
            return self.body(*args, **kwargs)

        return start


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    seen: list[str] = []

    @contextmanager
    def note(step: str) -> Iterator[None]:
        seen.append(step)
        try:
            yield
        finally:
            seen.append("started")

    monkeypatch.setattr(flow_start, "report_while", note)
    return seen


def test_the_start_ends_when_the_flow_runs(events: list[str]) -> None:
    def body(file: str, *, date: str) -> str:
        events.append("runs")
        return file + date

    flow: Any = StandIn(body)
    assert run_flow(flow, "a", date="b") == "ab"
    assert events == ["starting Prefect's flow", "started", "runs"]


def test_hooks_of_the_flow_are_kept(events: list[str]) -> None:
    flow: Any = StandIn(lambda: events.append("runs"))
    flow.on_running_hooks.append(lambda **_: events.append("own hook"))
    run_flow(flow)
    assert events == ["starting Prefect's flow", "started", "own hook", "runs"]


def test_a_start_that_fails_ends(events: list[str]) -> None:
    def fail() -> None:
        raise OSError("no server")

    flow: Any = StandIn(fail, runs=False)
    with pytest.raises(OSError, match="no server"):
        run_flow(flow)
    assert events == ["starting Prefect's flow", "started"]
