"""P10: what Prefect and MLflow add to the wall time of a pipeline.

The flow `train_model` runs with a clock around the function of every step. The overhead is all of
its wall time outside ingestion, training and export: Prefect's engine, the MLflow run, the plots,
the registry. A comparison with the same steps as plain functions was tried first: the start of
Ray's workers varies by more than the overhead. Ray is started once, for all rounds.
"""

import statistics
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import Any

from bench.home import own_home, write_rows
from bench.measure import Rounds, Row, measure_rows
from millrace.models.common.installation import Installation

ROUNDS = 3
ROWS = 20_000
WORK = ("ingest_dataset", "prepare_training", "train_on_ray", "export_candidates")
STEPS = (*WORK, "register_version", "promote_version")
FILE = """
name: bench
dataset:
  source: rows.parquet
  target: y
  columns: {y: {type: category}}
model:
  params: {hidden: [512, 512]}
training:
  epochs: 10
  batch_size: 128
"""


def rows(wanted: Collection[str]) -> Iterator[Row]:
    """Measure P10 in a home of its own."""
    with own_home() as installation:
        yield from measure_rows({"P10": partial(share_beyond_work, installation)}, wanted)


def share_beyond_work(installation: Installation, rounds: int = ROUNDS) -> Row:
    """P10: wall time of the flow beyond its work, as a share of the whole."""
    start_up = time_start_up(installation)

    from millrace.flows import train_model
    from millrace.models.ray.cluster import connect_to_ray

    write_rows(installation.home / "rows.parquet", ROWS)
    file = installation.home / "bench.yaml"
    file.write_text(FILE)

    def run_once() -> dict[str, float]:
        with step_times(train_model) as seconds:
            wall = seconds_of(lambda: train_model.train_model(str(file)))
        return {**seconds, "rest": wall - sum(seconds.values())}

    with connect_to_ray(installation.ray_address, 2):
        run_once()  # warms up: the first snapshot, the files of the libraries
        runs = [run_once() for _ in range(rounds)]
    whole = [sum(by_step.values()) for by_step in runs]
    beyond = [seconds_beyond(by_step) for by_step in runs]
    share = Rounds(beyond, whole).ratio
    return Row(
        name="P10",
        what="orchestration and tracking, share of the line's wall time "
        f"({statistics.median(beyond):.1f} of {statistics.median(whole):.0f} s); "
        f"start-up of {sum(start_up.values()):.0f} s apart",
        value=share,
        goal="≤ 0.02 + start-up",
        holds=share <= 0.02,
        samples={
            "beyond_work_s": beyond,
            "flow_s": whole,
            **{f"flow_{name}_s": [each[name] for each in runs] for name in runs[0]},
            **{f"start_up_{name}_s": [seconds] for name, seconds in start_up.items()},
        },
    )


def seconds_beyond(by_step: Mapping[str, float]) -> float:
    """Return the seconds outside the steps that do the work.

    Args:
        by_step: seconds in each step's function, and `rest`, outside all of them.
    """
    return sum(seconds for name, seconds in by_step.items() if name not in WORK)


def time_start_up(installation: Installation) -> dict[str, float]:
    """Start what the flow needs and the work does not, and return the seconds of each part."""
    # The work needs these too, so they are imported before the clock starts.
    for module in (
        "millrace.models.data.ingest",
        "millrace.models.training.trainer",
        "millrace.export.onnx.measure_graph",
        "onnxruntime",
    ):
        import_module(module)

    def imports() -> None:
        for module in ("mlflow.onnx", "millrace.flows.train_model"):
            import_module(module)

    def server() -> None:
        from prefect import flow

        @flow(persist_result=False)
        def nothing() -> None: ...

        nothing()

    def store() -> None:
        from millrace.models.registry.tracking import tracked_run

        with tracked_run(installation, "start-up", {}):
            pass

    parts = {"imports": imports, "prefect_server": server, "mlflow_store": store}
    return {name: seconds_of(start) for name, start in parts.items()}


@contextmanager
def step_times(flow_module: Any) -> Iterator[dict[str, float]]:
    """Time the functions inside the flow's tasks for the length of the block.

    Args:
        flow_module: the flow's module, which calls the tasks by the names in `STEPS`.
    """
    seconds: dict[str, float] = {}
    tasks = {name: getattr(flow_module, name) for name in STEPS}
    functions = {name: task.fn for name, task in tasks.items()}
    for name, task in tasks.items():
        task.fn = _time_function(functions[name], name, seconds)
    try:
        yield seconds
    finally:
        for name, task in tasks.items():
            task.fn = functions[name]


def _time_function(
    function: Callable[..., Any], name: str, seconds: dict[str, float]
) -> Callable[..., Any]:
    def timed(*args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            seconds[name] = time.perf_counter() - began

    return timed


def seconds_of(call: Callable[[], object]) -> float:
    """Return the seconds of a call."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began
