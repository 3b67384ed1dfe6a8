from typing import Literal

import pytest

from millrace.export.candidate import Candidate, Speed, choose, fallback, judged, pareto
from millrace.export.onnx.graph_certificate import Stage
from millrace.models.config.export_spec import ExportSpec

NAN, INF = float("nan"), float("inf")
SPEC = ExportSpec(max_metric_loss=0.01)
Objective = Literal["latency", "throughput", "size", "metric"]


def candidate(
    name: str,
    *,
    size: int = 1,
    latency: float = 1.0,
    throughput: float = 1.0,
    metric: float = 0.9,
    loss: float = 0.0,
    reason: str | None = None,
) -> Candidate:
    stage, speed = Stage(name, 0.0, 0.0, metric, loss), Speed(latency, latency, throughput, 1)
    return Candidate(name, None, name, size, speed, stage, reason)


def reason_of(stage: Stage, spec: ExportSpec = SPEC) -> str | None:
    return judged(Candidate("c", stage=stage), spec, None).reason


@pytest.mark.parametrize(
    ("difference", "loss", "passes"),
    [
        (0.0, 0.0, True),
        (0.5, 0.01, True),
        (0.5, -0.2, True),
        (0.5, 0.0101, False),
        (NAN, 0.0, False),
        (INF, 0.0, False),
        (0.0, NAN, False),
        (0.0, INF, False),
        (0.0, None, False),
    ],
)
def test_a_form_holds_its_gates_only_if_it_is_known_to(
    difference: float, loss: float | None, passes: bool
) -> None:
    assert (reason_of(Stage("s", difference, metric_loss=loss)) is None) == passes


@pytest.mark.parametrize("difference", [INF, NAN])
def test_answers_to_the_test_split_must_be_finite_too(difference: float) -> None:
    assert reason_of(Stage("s", 0.0, difference, 0.9, 0.0)) == "its answers are not finite"


@pytest.mark.parametrize(
    ("difference", "loss", "reason"),
    [
        (INF, 0.0, "its answers are not finite"),
        (0.0, 0.025, "metric loss 2.50% is more than 1.00%"),
        (0.0, None, "metric loss unknown is more than 1.00%"),
    ],
)
def test_a_refused_form_is_told_why(difference: float, loss: float | None, reason: str) -> None:
    assert reason_of(Stage("s", difference, metric_loss=loss)) == reason


def test_a_loss_of_nothing_is_allowed_at_a_gate_of_zero() -> None:
    assert reason_of(Stage("s", 0.0, metric_loss=0.0), ExportSpec(max_metric_loss=0)) is None


@pytest.mark.parametrize(
    ("size", "slo", "reason"),
    [
        (2**20, 2.0, None),
        (2**20 + 2**18, 2.0, "its 1.25 MiB are more than export.max_size_mib, 1 MiB"),
        (2**20, 1.9, "p99 2.00 ms is more than serving.latency_slo_ms, 1.9 ms"),
        (2**30, None, "its 1,024.00 MiB are more than export.max_size_mib, 1 MiB"),
    ],
)
def test_a_form_that_is_too_large_or_too_slow_is_refused(
    size: int, slo: float | None, reason: str | None
) -> None:
    found = judged(candidate("c", size=size, latency=2.0), ExportSpec(max_size_mib=1), slo)
    assert found.reason == reason


@pytest.mark.parametrize(
    ("objective", "name"),
    [("latency", "quick"), ("throughput", "wide"), ("size", "small"), ("metric", "good")],
)
def test_the_best_by_the_objective_is_chosen(objective: Objective, name: str) -> None:
    forms = (
        candidate("quick", size=9, latency=0.1, metric=0.8),
        candidate("wide", size=9, latency=0.5, throughput=9.0, metric=0.8),
        candidate("small", size=2, latency=0.5, metric=0.7),
        candidate("good", size=5, latency=0.9, metric=0.95),
    )
    chosen = choose(forms, ExportSpec(objective=objective))
    assert chosen is not None
    assert chosen.name == name


@pytest.mark.parametrize("objective", ["latency", "throughput", "size", "metric"])
def test_a_tie_goes_to_the_first(objective: Objective) -> None:
    chosen = choose((candidate("first"), candidate("second")), ExportSpec(objective=objective))
    assert chosen is not None
    assert chosen.name == "first"


@pytest.mark.parametrize(("latency", "name"), [(0.96, "first"), (0.94, "second")])
def test_what_noise_may_have_done_is_a_tie(latency: float, name: str) -> None:
    chosen = choose((candidate("first"), candidate("second", latency=latency)), ExportSpec())
    assert chosen is not None
    assert chosen.name == name


def test_the_front_has_what_no_other_form_beats() -> None:
    forms = (
        candidate("quick", size=9, latency=0.1, metric=0.8),
        candidate("beaten", size=9, latency=0.2, metric=0.8),
        candidate("small", size=2, latency=0.5, metric=0.7),
        candidate("twin", size=2, latency=0.5, metric=0.7),
        Candidate("unmade", reason="no"),
        candidate("refused", size=1, latency=9.0, metric=0.1, reason="metric loss"),
        candidate("many", size=9, latency=0.2, metric=0.7, throughput=1e6),
    )
    found = [each.name for each in pareto(forms)]
    assert found == ["quick", "small", "twin", "refused", "many"]


def test_the_better_of_two_negative_metrics_is_chosen() -> None:
    forms = (candidate("worse", metric=-0.5), candidate("better", metric=-0.1))
    assert choose(forms, ExportSpec(objective="metric")) == forms[1]


def test_a_refused_form_is_not_chosen() -> None:
    forms = (candidate("refused", latency=0.1, reason="no"), candidate("passed"))
    assert choose(forms, SPEC) == forms[1]


@pytest.mark.parametrize("forms", [(), (candidate("refused", reason="no"),)])
def test_nothing_is_chosen_where_nothing_passed(forms: tuple[Candidate, ...]) -> None:
    assert choose(forms, SPEC) is None


def test_the_fallback_lost_least() -> None:
    forms = (candidate("a", loss=0.3), candidate("b", loss=0.1), candidate("c", loss=0.2))
    assert fallback(forms, SPEC) == forms[1]


def test_the_fallback_is_the_best_by_the_objective_of_those_that_are_good_enough() -> None:
    forms = (
        candidate("large", size=9, loss=0.0, reason="too large"),
        candidate("small", size=2, loss=0.005, reason="too large"),
        candidate("bad", size=1, loss=0.5, reason="too large"),
    )
    assert fallback(forms, ExportSpec(objective="size")) == forms[1]


@pytest.mark.parametrize("loss", [NAN, INF])
def test_a_form_of_unknown_loss_is_no_fallback(loss: float) -> None:
    forms = (candidate("unknown", loss=loss), candidate("known", loss=0.2))
    assert fallback(forms, SPEC) == forms[1]


@pytest.mark.parametrize("stage", [Stage("s", INF, 0.0, 0.9, 0.0), Stage("s", 0.0, INF, 0.9, 0.0)])
def test_a_form_whose_answers_are_not_finite_is_no_fallback(stage: Stage) -> None:
    forms = (Candidate("broken", stage=stage), candidate("worse", loss=0.5))
    assert fallback(forms, SPEC) == forms[1]


@pytest.mark.parametrize(
    "forms", [(), (Candidate("unmade", reason="no"),), (candidate("unknown", loss=NAN),)]
)
def test_there_is_no_fallback_where_nothing_was_measured(forms: tuple[Candidate, ...]) -> None:
    assert fallback(forms, SPEC) is None


@pytest.mark.parametrize(("reason", "passed"), [(None, True), ("no", False)])
def test_a_form_without_a_reason_against_it_has_passed(reason: str | None, passed: bool) -> None:
    assert candidate("s", reason=reason).passed is passed
