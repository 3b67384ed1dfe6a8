"""P10: what Prefect and MLflow add to the wall time of the line.

The flow `train_model` runs with a clock around the function of every step. Beyond the work is all
of its wall time that is not inside ingestion, training or export: Prefect's engine, the MLflow run,
the pictures, the registry. A comparison with the same steps as plain functions was tried first: the
start of Ray's workers varies by more than what is looked for. Ray is started once, for all rounds.
"""

import statistics
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from bench.blobs import write_rows
from bench.catalog import attempt
from bench.home import own_home
from bench.rounds import ratio
from bench.row import Row
from millrace.models.common.installation import Installation

ROUNDS = 3
ROWS = 20_000
WORK = ("ingest_dataset", "train_workers", "export_candidates")
STEPS = (*WORK, "log_evidence", "register_version", "promote_version")
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
    """Run a small pipeline of our own and measure P10."""
    if "P10" in wanted:
        with own_home() as places:
            yield attempt("P10", partial(share_beyond_work, places))


def share_beyond_work(places: Installation, rounds: int = ROUNDS) -> Row:
    """P10: wall time of the flow beyond its work, as a share of the whole."""
    start_up = started(places)

    from millrace.flows import train_model
    from millrace.models.common.ray_cluster import connect_to_ray

    file = write_pipeline(places.home)

    def once() -> dict[str, float]:
        with step_times(train_model) as seconds:
            wall = seconds_of(lambda: train_model.train_model(str(file)))
        return {**seconds, "rest": wall - sum(seconds.values())}

    with connect_to_ray(places.ray_address, 2):
        once()  # warms up: the first snapshot, the files of the libraries
        kept = [once() for _ in range(rounds)]
    whole = [sum(by_step.values()) for by_step in kept]
    beyond = [seconds_beyond(by_step) for by_step in kept]
    value = ratio(beyond, whole)
    return Row(
        name="P10",
        what="orchestration and tracking, share of the line's wall time "
        f"({statistics.median(beyond):.1f} of {statistics.median(whole):.0f} s); "
        f"start-up of {sum(start_up.values()):.0f} s apart",
        value=value,
        goal="≤ 0.02 + start-up",
        holds=value <= 0.02,
        samples={
            "beyond_work_s": beyond,
            "flow_s": whole,
            **{f"flow_{name}_s": [each[name] for each in kept] for name in kept[0]},
            **{f"start_up_{name}_s": [seconds] for name, seconds in start_up.items()},
        },
    )


def seconds_beyond(by_step: Mapping[str, float]) -> float:
    """Return the seconds that no step of the work took.

    Args:
        by_step: seconds in each step's function, and `rest`, outside them all.
    """
    return sum(seconds for name, seconds in by_step.items() if name not in WORK)


def started(places: Installation) -> dict[str, float]:
    """Bring up what the flow needs and the work does not, and return the seconds of each part."""
    # Before the clock starts: the work needs them too.
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

        with tracked_run(places, "start-up", {}):
            pass

    parts = {"imports": imports, "prefect_server": server, "mlflow_store": store}
    return {name: seconds_of(start) for name, start in parts.items()}


@contextmanager
def step_times(flow_module: Any) -> Iterator[dict[str, float]]:
    """Time the functions inside the flow's tasks for the length of the block.

    Args:
        flow_module: the module that calls the tasks by the names in `STEPS`.
    """
    seconds: dict[str, float] = {}
    tasks = {name: getattr(flow_module, name) for name in STEPS}
    functions = {name: task.fn for name, task in tasks.items()}
    for name, task in tasks.items():
        task.fn = _timed(functions[name], name, seconds)
    try:
        yield seconds
    finally:
        for name, task in tasks.items():
            task.fn = functions[name]


def _timed(
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
    """Return how long a call takes."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def write_pipeline(home: Path) -> Path:
    """Write the rows and the pipeline file that learns them."""
    write_rows(home / "rows.parquet", ROWS)
    file = home / "bench.yaml"
    file.write_text(FILE)
    return file
