"""Metrics that MLflow did not take are sent with the next ones."""

from typing import Any, cast

from mlflow.exceptions import MlflowException

from millrace.tasks.train import MetricsLog


class Run:
    """Takes metrics, or is away."""

    def __init__(self) -> None:
        self.away, self.got = False, []

    def log_metrics(self, metrics: dict[str, float], step: int) -> None:
        if self.away:
            raise MlflowException("no connection\nwith many lines")
        self.got.append((step, metrics["loss"]))


def test_what_an_outage_held_back_comes_in_order() -> None:
    run = Run()
    metrics = MetricsLog(cast(Any, run), "step")
    metrics.send(10, {"loss": 3.0})
    run.away = True
    metrics.send(20, {"loss": 2.0})
    metrics.send(30, {"loss": 1.5})
    run.away = False
    metrics.send(40, {"loss": 1.0})
    assert run.got == [(10, 3.0), (20, 2.0), (30, 1.5), (40, 1.0)]


def test_steps_that_are_done_again_replace_those_that_were_not_sent() -> None:
    run = Run()
    run.away = True
    metrics = MetricsLog(cast(Any, run), "step")
    metrics.send(10, {"loss": 3.0})
    run.away = False
    metrics.send(10, {"loss": 2.5})
    assert run.got == [(10, 2.5)]
