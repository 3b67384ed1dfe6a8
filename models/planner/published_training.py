"""Published training steps on A100, and the weights that are fitted on them."""

import csv
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from millrace.models.common.bounded_files import bounded_yaml
from millrace.models.planner.catalogue import shipped_devices
from millrace.models.planner.decoder import Decoder
from millrace.models.planner.fit import Fit, fit_terms
from millrace.models.planner.parallelism import Layout
from millrace.models.planner.training_flops import hardware_flops
from millrace.models.planner.training_time import TERMS, TrainingStep, step_terms

PUBLISHED = Path(__file__).with_name("published")
CONTEXT, VOCABULARY = 2048, 51_200


@dataclass(frozen=True)
class MeasuredStep:
    """A training step and its published time.

    Attributes:
        model: name of the model in the paper.
        step: the step.
        seconds: its time.
    """

    model: str
    step: TrainingStep
    seconds: float


def gpt_decoder(layers: int, hidden: int, heads: int) -> Decoder:
    """Return a decoder like GPT-3, counted as Narayanan et al. 2021 do: without its final norm."""
    return Decoder(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_width=hidden // heads,
        intermediate=4 * hidden,
        vocabulary=VOCABULARY,
        gated=False,
        tied=True,
        positions=CONTEXT,
        biases="all",
        norm_bias=True,
        final_norm=False,
    )


def megatron_sc21() -> list[MeasuredStep]:
    """Return the ten steps of Narayanan et al. 2021, 2104.04473, table 1.

    The paper gives operations per second; the time is the operations of a step with full
    recomputation, by which the paper counts, divided by them.
    """
    return [_from_rate(row) for row in read_rows("megatron_sc21.csv")]


def read_rows(name: str) -> list[dict[str, str]]:
    """Return the rows of a file of published measurements."""
    with (PUBLISHED / name).open() as file:
        return list(csv.DictReader(file))


def megatron_mlsys23() -> list[MeasuredStep]:
    """Return the eight steps of Korthikanti et al. 2022, 2205.05198, table 5.

    First the four with full recomputation, then those with sequence parallelism and selective
    recomputation.
    """
    rows = read_rows("megatron_mlsys23.csv")
    full = [MeasuredStep(row["model"], _step(row), float(row["full_seconds"])) for row in rows]
    saving = []
    for each, row in zip(full, rows, strict=True):
        layout = replace(each.step.layout, sequence_parallel=True, recompute="selective")
        step = replace(each.step, layout=layout)
        saving.append(MeasuredStep(row["model"], step, float(row["selective_seconds"])))
    return full + saving


def _from_rate(row: Mapping[str, str]) -> MeasuredStep:
    step = _step(row)
    rate = float(row["tflops_per_device"]) * 1e12 * step.layout.world_size
    operations = hardware_flops(step.decoder, step.batch, CONTEXT, "full")
    return MeasuredStep(row["model"], step, operations / rate)


def _step(row: Mapping[str, str]) -> TrainingStep:
    """Return the step of a row, with full recomputation."""
    size = {key: int(value) for key, value in row.items() if value.isdigit()}
    split = size["tensor_parallel"] * size["pipeline_parallel"]
    layout = Layout(
        tensor_parallel=size["tensor_parallel"],
        pipeline_parallel=size["pipeline_parallel"],
        data_parallel=size["devices"] // split,
        virtual_stages=size["virtual_stages"],
        recompute="full",
    )
    decoder = gpt_decoder(size["layers"], size["hidden"], size["heads"])
    return TrainingStep(decoder, layout, size["batch"], CONTEXT, size["micro_batch"])


def fit_training_time(measured: list[MeasuredStep]) -> Fit:
    """Return the weights of a step's terms, fitted on measured steps on A100."""
    device = shipped_devices()["a100"]
    return fit_terms(
        [step_terms(each.step, device) for each in measured],
        [each.seconds for each in measured],
        TERMS,
        described=[each.step.described for each in measured],
    )


@cache
def published_fit(name: str) -> Fit:
    """Return a fit that is stored in the package, so that a plan need not fit again."""
    stored = dict(_stored_fits()[name])
    region = {key: (low, high) for key, (low, high) in stored.pop("region").items()}
    return Fit(**stored, region=region)


@cache
def _stored_fits() -> dict[str, dict[str, Any]]:
    return dict(bounded_yaml((PUBLISHED / "fits.yaml").read_text()))
