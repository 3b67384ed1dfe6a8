from collections.abc import Sequence

import pytest

from millrace.export.onnx.graph_certificate import GraphCandidate, GraphSpeed, GraphStage
from millrace.export.onnx.mixed_precision import Step, best, fewest_in_float

NAN = float("nan")
LAYERS = tuple(f"layer{number}" for number in range(20))


def searched(needed: int, layers: Sequence[str] = LAYERS) -> tuple[Step, ...]:
    """Search where `needed` layers must stay in float."""
    asked: list[int] = []

    def tried(kept: Sequence[str]) -> GraphCandidate:
        assert len(kept) not in asked, "made twice"
        asked.append(len(kept))
        return variant(0.001 if len(kept) >= needed else 0.2)

    return fewest_in_float(layers, tried, 0.01)


def variant(loss: float) -> GraphCandidate:
    stage, speed = GraphStage("mixed", 0.0, 0.0, 0.9, loss), GraphSpeed(0.25, 1.0, 1.0, 1)
    return GraphCandidate("mixed", size_bytes=2048, speed=speed, stage=stage)


@pytest.mark.parametrize("needed", range(20))
def test_the_fewest_layers_are_found(needed: int) -> None:
    found = best(searched(needed))
    assert found is not None
    assert found.kept == LAYERS[:needed]


@pytest.mark.parametrize("needed", [0, 1, 7, 19])
def test_a_search_takes_few_tries(needed: int) -> None:
    assert len(searched(needed)) <= 10


def test_where_all_layers_would_stay_in_float_there_is_no_such_form() -> None:
    steps = searched(20)
    assert best(steps) is None
    assert max(len(step.kept) for step in steps) == 19


def test_one_layer_leaves_no_choice() -> None:
    assert best(searched(1, LAYERS[:1])) is None
    assert best(searched(0, LAYERS[:1])) == Step((), variant(0.001), True)


def test_a_loss_that_is_not_known_does_not_hold() -> None:
    assert best(fewest_in_float(LAYERS, lambda kept: variant(NAN), 0.01)) is None


def test_a_step_is_told_in_words() -> None:
    told = str(Step(("a", "b"), variant(0.0123), False))
    assert told == "2 layers in float: loss 1.23%, above the limit; 2 KiB, p50 0.250 ms (a, b)"
