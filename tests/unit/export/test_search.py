"""A model that naive int8 breaks: a few channels of its activations are far larger than others."""

from typing import Any

import numpy as np
import pytest
import torch

from millrace.export.onnx.graph_certificate import GraphCandidate
from millrace.export.onnx.measure_graph import Evidence, gather_evidence
from millrace.export.onnx.onnx_exporter import Exporter
from millrace.models.config.export_spec import ExportSpec
from millrace.models.families.mlp import Perceptron
from millrace.models.families.network import Network, Served
from tests.unit.export.conftest import ENCODING, exporting_here

NAIVE, SMOOTH, MIXED = "onnx-int8-static", "onnx-int8-smooth", "onnx-int8-mixed"
FACTOR = 1000.0


def with_outliers(exported: Any) -> Served:
    """The same function: hidden channels are larger, and what multiplies them smaller."""
    objective = exported.objective
    net = Perceptron(ENCODING.in_features, objective.outputs, hidden=(128, 128))
    served = Served(Network(ENCODING, net), objective).eval()
    served.load_state_dict(exported.served.state_dict())
    first, second = [m for m in served.modules() if isinstance(m, torch.nn.Linear)][:2]
    with torch.no_grad():
        first.weight[:3] *= FACTOR
        first.bias[:3] *= FACTOR
        second.weight[:, :3] /= FACTOR
    return served


@pytest.fixture(scope="module")
def found(exported: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, GraphCandidate]:
    served = with_outliers(exported)
    rows = exported.rows(2000, seed=5)
    np.testing.assert_allclose(
        served(torch.from_numpy(rows)).detach(), exported.answer(rows), atol=1e-4
    )

    def evidence(seed: int) -> Evidence:
        asked = exported.rows(2000, seed)
        target = exported.answer(asked).argmax(axis=1)
        return gather_evidence(
            *(served, exported.objective, exported.read, asked, target), golden_rows=8
        )

    exporter = Exporter(
        served=served,
        objective=exported.objective,
        read=exported.read,
        calibration=lambda: [exported.rows(64, seed=n) for n in range(10, 18)],
        validation=lambda: evidence(6),
        folder=tmp_path_factory.mktemp("searched"),
        threads=1,
        spec=ExportSpec(candidates=(NAIVE,), max_metric_loss=0.01),
    )
    return {each.name: each for each in exporting_here(exporter).candidates(evidence(5))}


def loss(candidate: GraphCandidate) -> float:
    assert candidate.stage is not None
    assert candidate.stage.metric_loss is not None
    return candidate.stage.metric_loss


def test_naive_int8_loses_more_than_a_twentieth(found: dict[str, GraphCandidate]) -> None:
    assert loss(found[NAIVE]) > 0.05
    assert not found[NAIVE].passed


def test_smoothing_keeps_it_within_the_budget(found: dict[str, GraphCandidate]) -> None:
    assert loss(found[SMOOTH]) <= 0.01
    assert found[SMOOTH].passed


def test_the_search_keeps_the_layer_with_outliers_in_float(
    found: dict[str, GraphCandidate],
) -> None:
    mixed = found[MIXED]
    assert mixed.passed, mixed.reason
    assert mixed.size_bytes > found[NAIVE].size_bytes


def test_the_notes_tell_what_each_layer_costs_and_each_step(
    found: dict[str, GraphCandidate],
) -> None:
    notes = found[MIXED].notes
    assert sum("alone in int8" in note for note in notes) == 3
    assert any(note.startswith("0 layers in float") and "above the limit" in note for note in notes)
    assert any(note.startswith("1 layers in float") and "within" in note for note in notes)
