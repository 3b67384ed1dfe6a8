"""P4 and F1: what int8 gives, on models that were trained, and on one that it breaks.

Every form of `export/onnx/graph_variants.py` is made and measured as a pipeline would; then the
best int8 form and fp32 take turns in full batches, with one thread each.
"""

import logging
import tempfile
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import get_args

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional

from bench.catalog import attempt
from bench.compared import compared, loss_of, p4
from bench.row import Row
from millrace.export.onnx.measure_graph import Evidence, gather_evidence
from millrace.export.onnx.onnx_exporter import Exporter
from millrace.models.common.arrays import Array
from millrace.models.config.export_spec import ExportSpec, GraphForm
from millrace.models.families.cnn import ResNet
from millrace.models.families.mlp import Perceptron
from millrace.models.families.network import Network, Served
from millrace.models.families.objective import Classification
from millrace.models.inference.features import Encoding, Feature
from millrace.models.inference.model_input import FEATURES, ModelInput

BATCH = 64
LABELS = tuple(range(10))
READ = ModelInput(FEATURES, 64)
OUTLIERS, FACTOR = 8, 300.0


@dataclass(frozen=True)
class Data:
    """The digits, in three parts."""

    train: tuple[Array, Array]
    validation: tuple[Array, Array]
    test: tuple[Array, Array]

    @property
    def encoding(self) -> Encoding:
        """How a row becomes what the network sees."""
        pixels = self.train[0]
        image = Feature(
            "image", "vector", width=64, mean=float(pixels.mean()), std=float(pixels.std())
        )
        return Encoding((image,), "target", LABELS)


def rows(wanted: Collection[str]) -> Iterator[Row]:
    """Measure what is wanted, each in a folder of its own."""
    measures: dict[str, Callable[[Path], Row]] = {"P4": resnet_on_digits, "F1": with_outliers}
    logging.disable(logging.WARNING)
    for name, measure_row in measures.items():
        if name in wanted:
            with tempfile.TemporaryDirectory() as folder:
                yield attempt(name, partial(measure_row, Path(folder)))


def resnet_on_digits(folder: Path) -> Row:
    """P4: a ResNet trained on digits, its best int8 form against fp32."""
    data = digits()
    net = ResNet(64, len(LABELS), [1, 8, 8], channels=(64, 128), blocks=2)
    found = compared(*exporter_of(trained(net, data, epochs=8), data, folder), "digits")
    return p4("P4", "ResNet on digits", found)


def with_outliers(folder: Path) -> Row:
    """F1: the same for a perceptron with outlier channels, which naive int8 breaks."""
    data = digits()
    served = trained(Perceptron(64, len(LABELS), hidden=(1024, 1024, 1024)), data, epochs=8)
    enlarge(served)
    found = compared(*exporter_of(served, data, folder), "digits")
    lost, loss = loss_of(found.form("onnx-int8-static")), loss_of(found.best)
    form = found.best.name.removeprefix("onnx-")
    what = f"outlier channels, {form} ÷ fp32 rows/s, loss {loss:.2%}, naive {lost:.2%}"
    return Row(
        name="F1",
        what=what,
        value=found.ratio,
        goal="≥ 1.3, loss ≤ 1%, naive > 5%",
        holds=found.ratio >= 1.3 and loss <= 0.01 and lost > 0.05,
        samples=found.samples,
        details=found.table,
    )


def digits() -> Data:
    """Return scikit-learn's digits: 1,257 rows to learn from, 180 and 360 to measure on."""
    pixels, target = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(target))
    parts = np.split(order, [1257, 1437])
    first, second, third = ((pixels[p].astype(np.float32), target[p]) for p in parts)
    return Data(first, second, third)


def trained(net: nn.Module, data: Data, epochs: int) -> Served:
    """Train in this process, as the pipeline's loop does: AdamW, one cycle."""
    torch.manual_seed(0)
    objective = Classification(LABELS)
    network = Network(data.encoding, net)
    features, target = (torch.from_numpy(each) for each in data.train)
    steps = epochs * -(-len(target) // BATCH)
    optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps + 1)
    for _ in range(epochs):
        for places in torch.split(torch.randperm(len(target)), BATCH):
            optimizer.zero_grad()
            loss = functional.cross_entropy(network(features[places]), target[places])
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
    return Served(network.eval(), objective)


def enlarge(served: Served) -> None:
    """Make some channels of every hidden layer outliers, without changing any answer."""
    layers = [each for each in served.modules() if isinstance(each, nn.Linear)]
    with torch.no_grad():
        for layer, following in zip(layers, layers[1:], strict=False):
            layer.weight[:OUTLIERS] *= FACTOR
            layer.bias[:OUTLIERS] *= FACTOR
            following.weight[:, :OUTLIERS] /= FACTOR


def exporter_of(served: Served, data: Data, folder: Path) -> tuple[Exporter, Evidence]:
    """Return what makes every form there is, and what they are measured on."""
    objective = Classification(LABELS)

    def evidence(part: tuple[Array, Array]) -> Evidence:
        return gather_evidence(
            *(served, objective, READ, *part),
            golden_rows=32,
            batch_rows=BATCH,
        )

    made = Exporter(
        served=served,
        objective=objective,
        read=ModelInput("features", 64),
        calibration=lambda: (data.train[0][n : n + BATCH] for n in range(0, 512, BATCH)),
        validation=lambda: evidence(data.validation),
        folder=folder,
        threads=1,
        spec=ExportSpec(candidates=get_args(GraphForm), objective="throughput"),
    )
    return made, evidence(data.test)
