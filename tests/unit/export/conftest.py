import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from millrace.export.onnx.graph_variants import FP32
from millrace.export.onnx.onnx_exporter import Exporter
from millrace.export.onnx.torch_export import export_onnx
from millrace.models.common.arrays import Array
from millrace.models.config.export_spec import ExportSpec
from millrace.models.families.mlp import Perceptron
from millrace.models.families.network import Network, Served
from millrace.models.families.objective import Classification
from millrace.models.inference.features import Encoding, Feature
from millrace.models.inference.model_input import ModelInput

ENCODING = Encoding(
    (
        Feature("a", "number", mean=1.0, std=2.0),
        Feature("c", "category", categories=("x", "y", "z")),
        Feature("v", "vector", width=6, mean=-1.0, std=0.5),
    ),
    "t",
    ("no", "maybe", "yes"),
)


@pytest.fixture(autouse=True)
def _programs_of_tests_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Conversions run in processes of their own, which do not look in the working directory."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """Models here are so small that threads only wait for each other, which costs seconds."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("OMP_NUM_THREADS", "1")  # of programs that a test starts
        yield
    torch.set_num_threads(before)


def exporting_here(exporter: Exporter) -> Exporter:
    """Return an exporter that exports in this process, where torch's exporter is imported."""
    write = partial(export_onnx, exporter.served, exporter.read, exporter.objective.output)
    return replace(exporter, to_onnx=write)


@dataclass(frozen=True)
class Exported:
    """A small classifier in PyTorch and in ONNX."""

    served: Served
    objective: Classification
    read: ModelInput
    path: Path

    def place(self, folder: Path) -> None:
        """Put the file where an exporter of this classifier makes it, so that it is made."""
        shutil.copyfile(self.path, folder / f"{FP32}.onnx")

    def rows(self, count: int, seed: int = 0) -> Array:
        """Return rows as a client sends them, float32 `[count, width]`."""
        rows = np.random.default_rng(seed).normal(0, 2, (count, self.read.width))
        rows[:, 1] = np.arange(count) % 3
        return rows.astype(np.float32)

    def answer(self, rows: Array) -> Array:
        """Return PyTorch's answers."""
        with torch.inference_mode():
            return np.asarray(self.served(torch.from_numpy(rows)))


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """One export, which takes seconds, for all tests; nobody changes the file."""
    torch.manual_seed(0)
    objective = Classification(ENCODING.labels)  # type: ignore[arg-type]
    net = Perceptron(ENCODING.in_features, objective.outputs, hidden=(128, 128))
    served = Served(Network(ENCODING, net), objective).eval()
    path = tmp_path_factory.mktemp("exported") / "model.onnx"
    export_onnx(served, ENCODING.input, objective.output, path)
    return Exported(served, objective, ENCODING.input, path)


@pytest.fixture(scope="module")
def exporter(exported: Exported, tmp_path_factory: pytest.TempPathFactory) -> Exporter:
    folder = tmp_path_factory.mktemp("forms")
    exported.place(folder)
    return Exporter(
        served=exported.served,
        objective=exported.objective,
        read=exported.read,
        calibration=lambda: [exported.rows(64, seed=n) for n in range(4)],
        validation=lambda: pytest.fail("nothing is searched for"),
        folder=folder,
        threads=1,
        spec=ExportSpec(),
    )
