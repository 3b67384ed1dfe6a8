"""Measures the graphs of `planner_gpu.yaml` on a GPU of this machine.

`python -m bench.planner_gpu_graphs ROWS.csv [PREFIX]` exports the networks of these configurations
with the weights that they begin with, because the time of a call depends on no weight, and times
each graph as an export does. It writes a row for each quantity that was measured.
"""

import csv
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.home import own_home
from bench.planner_gpu import Measured, configurations, own_machines, prepare, write_measured
from bench.planner_runs import COLUMNS

Rows = npt.NDArray[Any]
FEW_ROWS = 4000
"""Rows of a table that nothing is trained on."""
DECODER = "causal_lm"
CHECKED_ROWS = 8
NEAR = {"onnx-fp32": 1e-3, "onnx-fp16": 0.02}
"""How far answers on a GPU may be from those of the same graph on the CPU, which are shares."""
PROCESSES = 6


@dataclass(frozen=True)
class Graph:
    """The graphs of a configuration.

    Attributes:
        model: name of the configuration.
        kind: kind of the model.
        work: what it asks of a machine.
        files: its graphs by the variant's name.
        input: name of the input.
        row: one row, as an export times it.
        batch: a full batch.
    """

    model: str
    kind: str
    work: Any
    files: Mapping[str, Path]
    input: str
    row: Rows
    batch: Rows


def graphs(prefix: str, folder: Path, machines: Any) -> Iterator[Graph]:
    """Export the networks whose names begin with `prefix`, several at a time.

    Each in a process with a home of its own, because two exports of one home wait for each other.
    """
    chosen = [each for each in configurations(prefix) if each["family"] != DECODER]
    with ProcessPoolExecutor(
        PROCESSES, mp_context=get_context("spawn"), max_tasks_per_child=1
    ) as pool:
        begun = [pool.submit(export, each, folder, machines) for each in chosen]
        for each in begun:
            yield each.result()


def export(configuration: Mapping[str, Any], folder: Path, machines: Any) -> Graph:
    """Export a network that has not been trained, and encode the rows that it is timed with."""
    with own_home() as installation:
        from millrace.models.families.family import build_network
        from millrace.models.families.objective import objective_of
        from millrace.models.inference.row_batches import golden_requests
        from millrace.models.training.checkpoint import TrainState, save_checkpoint
        from millrace.tasks.kinds.graph.graph_export import exporter_of
        from millrace.tasks.kinds.graph.graph_rows import split_rows

        installation.prepared()
        place = folder / configuration["name"]
        checkpoint, variants = place / "checkpoint", place / "variants"
        for each in (checkpoint, variants):
            each.mkdir(parents=True)
        known = {"rows": FEW_ROWS} if "rows" in configuration else {}
        run = prepare({**configuration, **known}, installation, place, machines)
        encoding, pipeline = run.prepared.details.encoding, run.pipeline
        network = build_network(pipeline.model, pipeline.folder, encoding, objective_of(encoding))
        save_checkpoint(checkpoint, network, {}, TrainState())
        exporter = exporter_of(pipeline, run.snapshot, encoding, checkpoint, variants)
        files = {name: exporter.make(name) for name in pipeline.export.candidates}
        rows, _ = split_rows(pipeline, run.snapshot, encoding, place)
        rows, most, read = np.array(rows), pipeline.serving.max_batch_size, encoding.input
        golden = golden_requests(len(rows[: pipeline.export.golden_rows]), most)
        single = next(part for part in golden if len(part) == 1)
        return Graph(
            *(pipeline.name, run.kind.name, run.work, files, read.name),
            read.trimmed(rows[single]),
            read.trimmed(np.resize(rows, (most, *rows.shape[1:]))),
        )


def graph_measures(graph: Graph, machines: Any) -> Iterator[Measured]:
    """Time the graphs of a configuration, and yield what was measured."""
    from millrace.export.onnx.graph_probe import speed_of
    from millrace.models.inference.onnx_session import OnnxSession
    from millrace.models.planner.run_terms import online_terms

    for variant in graph.work.online.variants:
        file = graph.files[variant.name]
        session = OnnxSession(file)
        off = difference(session, OnnxSession(file, gpu=False), graph.batch[:CHECKED_ROWS])
        if not off <= NEAR[variant.name]:
            raise ValueError(f"{graph.model} {variant.name} is off by {off} on the GPU")
        speed = speed_of(session, {graph.input: graph.row}, {graph.input: graph.batch})
        sys.stdout.write(
            f"{graph.model} {variant.name}: off by {off:.2g}, p50 {speed.latency_ms:.4g} ms, "
            f"p99 {speed.p99_ms:.4g} ms, others took {speed.other_load:.0%} of the cores\n"
        )
        terms = online_terms(graph.work, variant, machines)
        yield "online_call", speed.latency_ms / 1000, terms["online_call"]
        yield "online_unit", 1 / speed.per_second, terms["online_unit"]


def difference(one: Any, other: Any, rows: Rows) -> float:
    """Return how far the answers of two sessions are from each other."""
    return float(np.abs(one.answer(rows) - other.answer(rows)).max())


def main(target: Path, prefix: str = "") -> None:
    """Measure the graphs, and write a row for each quantity."""
    machines = own_machines()
    with tempfile.TemporaryDirectory() as name, target.open("w", newline="") as file:
        csv.writer(file).writerow(COLUMNS)
        exported: Sequence[Graph] = list(graphs(prefix, Path(name), machines))
        # Nothing is exported any more when the first one is timed.
        for graph in exported:
            measured = graph_measures(graph, machines)
            write_measured(file, machines, graph.model, graph.kind, measured)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:3])
