"""When a flow run is made; the runs themselves are made by a real Prefect in the integration."""

from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest

from millrace.flows.settings import Settings
from millrace.flows.triggers import release_worker
from millrace.flows.triggers.release_worker import RUN_SECONDS, Due, Releaser
from millrace.models.common.errors import TransientError
from millrace.serving.release.actions import Stage


class Trial:
    """A receiver whose releases fail as often as they are told to, and what it did."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, due: Due) -> None:
        self.due, self.now, self.failures = due, 0.0, 0
        self.runs: list[Any] = []
        self.without_run: list[list[str]] = []
        self.releaser = Releaser(Settings(), lambda: self.due, lambda: self.now)
        monkeypatch.setattr(self.releaser, "_create_run", self._create_run)
        monkeypatch.setattr(self.releaser, "_release_without_run", self._release_without_run)
        monkeypatch.setattr(release_worker, "run_flow", lambda *_, **__: self._release())

    def _create_run(self, parameters: dict[str, object], due: Due) -> Any:
        self.runs.append(parameters["models"])
        return SimpleNamespace(id=uuid4())

    def _release_without_run(self, asked_by: str, models: list[str]) -> None:
        self.without_run.append(models)
        self._release()

    def _release(self) -> None:
        if self.failures:
            self.failures -= 1
            raise TransientError("no Triton")

    def ask(self, models: list[str] | None = None, at: float = 0.0) -> None:
        self.now = at
        try:
            self.releaser.release("x", models)
        except TransientError:
            return


def test_where_nothing_is_due_no_flow_run_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    trial = Trial(monkeypatch, {})
    trial.ask()
    trial.due = {"a": Stage("a", 1)}
    trial.ask(["b"])
    assert trial.runs == []
    trial.ask(["a", "b"])
    assert trial.runs == [["a"]]


def test_what_fails_again_and_again_makes_a_flow_run_a_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trial = Trial(monkeypatch, {"a": Stage("a", 1)})
    trial.failures = 10
    for at in (0.0, 2.0, 7.0, 17.0, 37.0):
        trial.ask(at=at)
    assert (len(trial.runs), len(trial.without_run)) == (1, 4)
    trial.ask(at=RUN_SECONDS)
    assert len(trial.runs) == 2


def test_another_thing_has_a_flow_run_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    trial = Trial(monkeypatch, {"a": Stage("a", 1)})
    trial.failures = 1
    trial.ask()
    trial.due = {"a": Stage("a", 2)}
    trial.ask(at=1.0)
    assert (len(trial.runs), trial.without_run) == (2, [])
