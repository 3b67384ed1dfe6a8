"""Which candidates are good enough, and which of them is chosen, whatever kind of model it is."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from millrace.export.candidate import AnyCandidate, Candidate
from millrace.export.language.engine_speed import LanguageSpeed
from millrace.export.language.language_certificate import LanguageCandidate, LanguageStage
from millrace.export.language.language_exporter import language_gates
from millrace.export.onnx.graph_certificate import GraphCandidate, GraphSpeed, GraphStage
from millrace.export.select import Gates, apply_gates, choose, pareto_front, ties_with

NAN, INF = float("nan"), float("inf")


@dataclass(frozen=True)
class Kind:
    """How a kind measures.

    Attributes:
        stage: makes a stage out of its name, its metric and its loss.
        speed: makes a speed out of latency and throughput.
        gates: makes gates out of the loss and the size.
        metrics: one that is good, one that is middling, and two that are bad, the worse one last.
    """

    stage: Callable[[str, Any, Any], Any]
    speed: Callable[[float, float], Any]
    gates: Callable[..., Gates]
    metrics: tuple[float, float, float, float]

    def candidate(
        self,
        name: str,
        *,
        size: int = 1,
        latency: float = 1.0,
        throughput: float = 1.0,
        metric: float | None = None,
        loss: float | None = 0.0,
        reason: str | None = None,
    ) -> AnyCandidate:
        metric = self.metrics[0] if metric is None else metric
        stage, speed = self.stage(name, metric, loss), self.speed(latency, throughput)
        return Candidate(name, Path(name), name, size, speed, stage, reason)


def language_speed(latency: float, throughput: float) -> LanguageSpeed:
    return LanguageSpeed(latency / 2, latency / 2, {1: 1.0, 8: 1.0, 32: throughput}, 8, 8)


GRAPH = Kind(
    lambda name, metric, loss: GraphStage(name, 0.0, 0.0, metric, loss),
    lambda latency, throughput: GraphSpeed(latency, latency, throughput, 1),
    lambda loss=0.01, size=None: Gates(loss, max_size_mib=size),
    (0.95, 0.8, 0.7, 0.1),
)
LANGUAGE = Kind(
    lambda name, perplexity, increase: LanguageStage(name, perplexity, increase),
    language_speed,
    language_gates,
    (9.0, 12.0, 13.0, 99.0),
)


@pytest.fixture(params=[GRAPH, LANGUAGE], ids=["graph", "language"])
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found


def refusal(stage: GraphStage | LanguageStage, gates: Gates) -> str | None:
    return apply_gates(Candidate("c", stage=stage), gates).reason


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
def test_a_graph_passes_its_gates_only_if_it_is_known_to(
    difference: float, loss: float | None, passes: bool
) -> None:
    assert (refusal(GraphStage("s", difference, metric_loss=loss), Gates(0.01)) is None) == passes


@pytest.mark.parametrize("difference", [INF, NAN])
def test_a_graphs_answers_to_the_test_split_must_be_finite_too(difference: float) -> None:
    stage = GraphStage("s", 0.0, difference, 0.9, 0.0)
    assert refusal(stage, Gates(0.01)) == "its answers are not finite"


@pytest.mark.parametrize(("perplexity", "kl"), [(NAN, 0.0), (INF, 0.0), (10.0, NAN), (10.0, INF)])
def test_perplexity_and_divergence_must_be_finite(perplexity: float, kl: float) -> None:
    stage = LanguageStage("openvino-int8", perplexity, mean_kl=kl)
    assert refusal(stage, language_gates()) == "its answers are not finite"


@pytest.mark.parametrize(
    ("difference", "loss", "reason"),
    [
        (INF, 0.0, "its answers are not finite"),
        (0.0, 0.025, "metric loss 2.50% is more than the limit of 1.00%"),
        (0.0, None, "metric loss unknown is more than the limit of 1.00%"),
    ],
)
def test_a_refused_graph_has_the_reason(difference: float, loss: float | None, reason: str) -> None:
    assert refusal(GraphStage("s", difference, metric_loss=loss), Gates(0.01)) == reason


@pytest.mark.parametrize(
    ("increase", "reason"),
    [
        (0.01, None),
        (-0.2, None),
        (0.0101, "perplexity increase 1.01% is more than the limit of 1.00%"),
        (NAN, "perplexity increase nan% is more than the limit of 1.00%"),
    ],
)
def test_a_variant_whose_perplexity_rises_is_refused(increase: float, reason: str | None) -> None:
    assert refusal(LanguageStage("openvino-int8", 10.0, increase), language_gates()) == reason


def test_a_loss_of_nothing_is_allowed_at_a_gate_of_zero(kind: Kind) -> None:
    assert apply_gates(kind.candidate("c", loss=0.0), kind.gates(0.0)).passed


def test_a_candidate_that_was_not_measured_is_refused(kind: Kind) -> None:
    assert apply_gates(Candidate("c"), kind.gates()).reason == "its answers are not finite"


def test_a_reason_that_was_there_before_the_gates_is_kept(kind: Kind) -> None:
    found = apply_gates(kind.candidate("c", loss=0.5, reason="it is another model"), kind.gates())
    assert found.reason == "it is another model"


@pytest.mark.parametrize(
    ("size", "most", "reason"),
    [
        (2**20, 1, None),
        (2**20 + 2**18, 1, "its size 1.25 MiB is more than export.max_size_mib, 1 MiB"),
        (2**30, 1, "its size 1,024.00 MiB is more than export.max_size_mib, 1 MiB"),
        (3 * 2**20, 2, "its size 3.00 MiB is more than export.max_size_mib, 2 MiB"),
        (600 * 2**10, 0.5, "its size 600 KiB is more than export.max_size_mib, 0.5 MiB"),
        (2**40, None, None),
    ],
)
def test_a_candidate_that_is_too_large_is_refused(
    kind: Kind, size: int, most: float | None, reason: str | None
) -> None:
    assert apply_gates(kind.candidate("c", size=size), kind.gates(0.01, most)).reason == reason


def candidates_of(kind: Kind) -> tuple[AnyCandidate, ...]:
    good, middling, bad, _ = kind.metrics
    return (
        kind.candidate("quick", size=9, latency=0.1, metric=middling),
        kind.candidate("wide", size=9, latency=0.5, throughput=9.0, metric=middling),
        kind.candidate("small", size=2, latency=0.5, metric=bad),
        kind.candidate("good", size=5, latency=0.9, metric=good),
        kind.candidate("refused", size=1, latency=0.01, throughput=99, reason="no"),
        kind.candidate("beaten", size=9, latency=0.5, metric=bad),
        Candidate("unmade", reason="no"),
    )


@pytest.mark.parametrize(
    ("objective", "name"),
    [("latency", "quick"), ("throughput", "wide"), ("size", "small"), ("metric", "good")],
)
def test_the_best_by_the_objective_is_chosen(kind: Kind, objective: str, name: str) -> None:
    chosen = choose(candidates_of(kind), objective, kind.gates())
    assert chosen is not None
    assert chosen.name == name


@pytest.mark.parametrize("objective", ["latency", "throughput", "size", "metric"])
def test_a_tie_goes_to_the_first(kind: Kind, objective: str) -> None:
    equal = (kind.candidate("first"), kind.candidate("second"))
    assert choose(equal, objective, kind.gates()) is equal[0]


@pytest.mark.parametrize(("latency", "name"), [(0.96, "first"), (0.94, "second")])
def test_what_noise_may_have_done_is_a_tie(kind: Kind, latency: float, name: str) -> None:
    two = (kind.candidate("first"), kind.candidate("second", latency=latency))
    chosen = choose(two, "latency", kind.gates())
    assert chosen is not None
    assert chosen.name == name


@pytest.mark.parametrize(("others", "name"), [(0.0, "second"), (0.3, "first")])
def test_a_busy_machine_makes_a_larger_tie(kind: Kind, others: float, name: str) -> None:
    first = kind.candidate("first")
    first = replace(first, speed=replace(first.speed, other_load=others))
    two = (first, kind.candidate("second", latency=0.8))
    chosen = choose(two, "latency", kind.gates())
    assert chosen is not None
    assert chosen.name == name
    as_good = ("second",) if name == "first" else ()
    assert ties_with(chosen, two, "latency", kind.gates()) == as_good


def test_the_front_has_what_no_other_candidate_beats(kind: Kind) -> None:
    _, middling, bad, worst = kind.metrics
    candidates = (
        kind.candidate("quick", size=9, latency=0.1, metric=middling),
        kind.candidate("beaten", size=9, latency=0.2, metric=middling),
        kind.candidate("small", size=2, latency=0.5, metric=bad),
        kind.candidate("twin", size=2, latency=0.5, metric=bad),
        Candidate("unmade", reason="no"),
        kind.candidate("refused", size=1, latency=9.0, metric=worst, reason="metric loss"),
        kind.candidate("many", size=9, latency=0.2, metric=bad, throughput=1e6),
    )
    found = pareto_front(candidates, kind.gates())
    assert found == {"quick", "small", "twin", "refused", "many"}
    every = candidates_of(kind)
    assert pareto_front(every[:4], kind.gates()) == {"quick", "wide", "small", "good"}
    assert pareto_front(every, kind.gates()) == {"refused"}


def test_the_better_of_two_negative_metrics_is_chosen() -> None:
    two = (GRAPH.candidate("worse", metric=-0.5), GRAPH.candidate("better", metric=-0.1))
    assert choose(two, "metric", GRAPH.gates()) is two[1]


def test_a_refused_candidate_is_not_chosen(kind: Kind) -> None:
    two = (kind.candidate("refused", latency=0.1, reason="no"), kind.candidate("passed"))
    assert choose(two, "latency", kind.gates()) is two[1]


def test_what_no_backend_serves_is_never_chosen(kind: Kind) -> None:
    compared = replace(kind.candidate("compared", size=1), is_served=False)
    served = kind.candidate("served", size=2)
    assert choose((compared, served), "size", kind.gates()) is served
    assert choose((compared,), "size", kind.gates()) is None
    refused = replace(served, reason="no")
    assert choose((compared, refused), "size", kind.gates()) is refused


def test_the_one_that_lost_least_is_the_nearest(kind: Kind) -> None:
    refused = [
        kind.candidate(name, loss=loss, reason="no")
        for name, loss in (("a", 0.3), ("b", 0.1), ("c", 0.2))
    ]
    assert choose(refused, "latency", kind.gates()) is refused[1]


def test_the_best_by_the_objective_of_those_that_lost_little_is_the_nearest(kind: Kind) -> None:
    refused = (
        kind.candidate("large", size=9, loss=0.0, reason="too large"),
        kind.candidate("small", size=2, loss=0.005, reason="too large"),
        kind.candidate("bad", size=1, loss=0.5, reason="too large"),
    )
    assert choose(refused, "size", kind.gates()) is refused[1]


@pytest.mark.parametrize("loss", [NAN, INF])
def test_one_of_unknown_loss_is_not_the_nearest(kind: Kind, loss: float) -> None:
    refused = (
        kind.candidate("unknown", loss=loss, reason="no"),
        kind.candidate("known", loss=0.2, reason="no"),
    )
    assert choose(refused, "latency", kind.gates()) is refused[1]


@pytest.mark.parametrize(
    ("kind", "stage"),
    [
        (GRAPH, GraphStage("s", INF, 0.0, 0.9, 0.0)),
        (GRAPH, GraphStage("s", 0.0, INF, 0.9, 0.0)),
        (LANGUAGE, LanguageStage("s", INF, 0.0)),
        (LANGUAGE, LanguageStage("s", 10.0, 0.0, mean_kl=NAN)),
    ],
)
def test_one_whose_answers_are_not_finite_is_not_the_nearest(
    kind: Kind, stage: GraphStage | LanguageStage
) -> None:
    broken: AnyCandidate = Candidate("broken", Path("broken"), stage=stage, reason="no")
    worse = kind.candidate("worse", loss=0.5, reason="no")
    assert choose((broken, worse), "latency", kind.gates()) is worse


@pytest.mark.parametrize(
    "candidates",
    [
        (),
        (GraphCandidate("unmade", reason="no"),),
        (LanguageCandidate("unmade", reason="no"),),
        (GRAPH.candidate("unknown", loss=NAN, reason="no"),),
        (GRAPH.candidate("unknown", loss=None, reason="no"),),
        (LANGUAGE.candidate("unknown", loss=NAN, reason="no"),),
    ],
)
def test_nothing_is_chosen_where_nothing_was_measured(candidates: tuple[AnyCandidate, ...]) -> None:
    assert choose(candidates, "size", Gates(0.01)) is None


@pytest.mark.parametrize(("reason", "passed"), [(None, True), ("no", False)])
def test_a_candidate_without_a_reason_against_it_has_passed(
    kind: Kind, reason: str | None, passed: bool
) -> None:
    assert kind.candidate("s", reason=reason).passed is passed
