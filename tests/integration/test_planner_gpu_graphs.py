"""The graphs that the planner's figures of a GPU are from, exported and timed on a CPU."""

import csv
import json

import pytest

from bench.planner_gpu import write_measured
from bench.planner_gpu_graphs import graph_measures, graphs
from bench.planner_runs import COLUMNS
from millrace.models.planner.catalogue import Machines, shipped_devices
from millrace.models.planner.published_runs import gpu_runs

H200 = Machines("NVIDIA H200", shipped_devices()["h200"])


@pytest.mark.slow
def test_a_network_that_is_not_trained_is_timed_as_a_graph_with_the_published_terms(tmp_path):
    (graph,) = graphs("f-mlp-1", tmp_path, H200)
    assert set(graph.files) == {"onnx-fp32", "onnx-fp16"}
    assert (graph.row.shape, graph.batch.shape) == ((1, 20), (64, 20))
    target = tmp_path / "rows.csv"
    with target.open("w", newline="") as file:
        write_measured(file, H200, graph.model, graph.kind, graph_measures(graph, H200))
    rows = list(csv.DictReader(target.open(), COLUMNS))
    assert [row["quantity"] for row in rows] == ["online_call", "online_unit"] * 2
    published = [each for each in gpu_runs() if each.model == graph.model]
    for row in rows:
        assert float(row["measured"]) > 0
        assert json.loads(row["terms"]) in [each.terms for each in published]
