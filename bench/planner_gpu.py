"""Trains the configurations of `planner_gpu.yaml` on a GPU of this machine.

`python -m bench.planner_gpu ROWS.csv [PREFIX]` trains them one after the other in one Ray Train
worker, because the start of a worker takes longer than most of them. It writes a row for each
quantity that was measured. `planner_gpu_graphs` measures their graphs.
"""

import csv
import json
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, TextIO

import yaml

from bench.home import own_home
from bench.planner_runs import COLUMNS, HERE, write_pipeline

STEPS = 60
"""Steps of a decoder's training."""
HISTORY = "history.json"


def configurations(prefix: str) -> list[dict[str, Any]]:
    """Return the configurations of both lists whose names begin with `prefix`."""
    lists = yaml.safe_load((HERE / "planner_gpu.yaml").read_text())
    return [each for each in chain(*lists.values()) if each["name"].startswith(prefix)]


@dataclass(frozen=True)
class Run:
    """A configuration that is ready to be trained.

    Attributes:
        pipeline: its pipeline.
        kind: kind of the model.
        snapshot: its data.
        prepared: its training.
        work: what it asks of a machine.
    """

    pipeline: Any
    kind: Any
    snapshot: Any
    prepared: Any
    work: Any


def prepare(
    configuration: Mapping[str, Any], installation: Any, folder: Path, machines: Any
) -> Run:
    """Ingest the data of a configuration, and prepare its training."""
    from millrace.models.config.model_kind import kind_of_family
    from millrace.models.config.pipeline_file import load_pipeline
    from millrace.models.data import ingest
    from millrace.tasks.kinds.steps import steps_of
    from millrace.tasks.plan import facts_of_snapshot
    from millrace.tasks.plan_places import pipeline_on

    file = write_pipeline(folder, configuration)
    overrides = ["training.num_workers=1", "export.candidates=[onnx-fp32, onnx-fp16]"]
    if configuration["family"] == "causal_lm":
        overrides[1] = f"training.max_steps={STEPS}"
    else:
        overrides.append("serving.device=gpu")
    pipeline = load_pipeline(file, overrides)
    kind = kind_of_family(pipeline.model.family)
    snapshot = ingest.ingest(pipeline, installation)
    named: Any = _NamedRun(pipeline.name)
    prepared = steps_of(kind).prepare(pipeline, installation, snapshot, named)
    facts = facts_of_snapshot(pipeline, snapshot)
    work = steps_of(kind).plan(pipeline_on(pipeline, machines), installation, lambda: facts)
    return Run(pipeline, kind, snapshot, prepared, work)


@dataclass(frozen=True)
class _NamedRun:
    """What `prepare` needs of an MLflow run: a name for files."""

    run_id: str


def train_all(config: Mapping[str, Any]) -> None:
    """Train every job on this worker, and write its history into its folder."""
    import torch

    for job, folder in zip(config["jobs"], config["folders"], strict=True):
        history: list[dict[str, Any]] = []
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        job.run(None, partial(_keep, history))
        (folder / HISTORY).write_text(json.dumps(history))


def _keep(history: list[dict[str, Any]], metrics: dict[str, Any], write: Any) -> None:
    history.append(metrics)


def train_on_ray(runs: Sequence[Run], folder: Path) -> list[list[dict[str, Any]]]:
    """Return the history of each run."""
    import ray
    import ray.train
    from ray.train.torch import TorchTrainer

    from millrace.models.training.workers import scaling_config

    folders = [folder / run.pipeline.name for run in runs]
    for each in folders:
        each.mkdir()
    ray.init(log_to_driver=False, include_dashboard=False)
    TorchTrainer(
        train_all,
        train_loop_config={"jobs": [run.prepared.job for run in runs], "folders": folders},
        scaling_config=scaling_config(1),
        run_config=ray.train.RunConfig(name="planner", storage_path=str(folder)),
    ).fit()
    ray.shutdown()
    return [json.loads((each / HISTORY).read_text()) for each in folders]


Measured = tuple[str, float, Mapping[str, float]]
"""Quantity, measurement and terms."""


def trained_measures(
    run: Run, history: Sequence[Mapping[str, Any]], machines: Any
) -> Iterator[Measured]:
    """Yield what a training measured."""
    from millrace.models.planner.run_terms import training_terms
    from millrace.tasks.plan_measured import memory_of, step_seconds_of

    terms = training_terms(run.work, machines)
    step = step_seconds_of(run.work.training, run.work.unit, history)
    if step is not None:
        yield "training_step", step, terms["training_step"]
    peak = memory_of(history)
    if peak is not None:
        yield "training_memory", peak, terms["training_memory"]


def own_machines() -> Any:
    """Return the GPU of this machine; the catalogue must have it."""
    import torch

    from millrace.models.planner.catalogue import Machines, device_named

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    device = device_named(gpu)
    if device is None:
        raise SystemExit(f"the catalogue has no {gpu}")
    return Machines(gpu, device)


def write_measured(
    file: TextIO, machines: Any, model: str, kind: str, measured: Iterable[Measured]
) -> None:
    """Write a row for each quantity of a configuration."""
    rows = csv.writer(file)
    for quantity, value, terms in measured:
        words = json.dumps({each: float(f"{v:.5g}") for each, v in terms.items()})
        rows.writerow((quantity, machines.device.chip, model, kind, f"{value:.6g}", words))
        sys.stdout.write(f"{model} {quantity} {value:.5g}\n")
        sys.stdout.flush()
    file.flush()


def main(target: Path, prefix: str = "") -> None:
    """Measure the trainings, and write a row for each quantity."""
    with (
        own_home() as installation,
        tempfile.TemporaryDirectory() as name,
        target.open("w", newline="") as file,
    ):
        installation.prepared()
        folder, machines = Path(name), own_machines()
        csv.writer(file).writerow(COLUMNS)
        runs = [prepare(each, installation, folder, machines) for each in configurations(prefix)]
        for run, history in zip(runs, train_on_ray(runs, folder), strict=True):
            measured = trained_measures(run, history, machines)
            write_measured(file, machines, run.pipeline.name, run.kind.name, measured)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:3])
