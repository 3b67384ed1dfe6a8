"""The sheet of a plan: the three stages of a model beside each other, on one kind of machine.

Every number carries its formula. Times are sums of physical terms at the machine's figures; where
measurements were fitted, they carry the fit's interval, and elsewhere none.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from millrace.models.planner.catalogue import Machines
from millrace.models.planner.estimates import Fits
from millrace.models.planner.quantity import Cell, Quantity, format_value
from millrace.models.planner.serving_column import batch_cells, serving_cells
from millrace.models.planner.serving_memory import bytes_of_type
from millrace.models.planner.training_column import training_cells
from millrace.models.planner.work import Work

STAGES = ("training", "online", "batch")
DISTURBED = (
    "other programs ran while this machine was measured, so its times may be too long; "
    "it is measured again after an hour"
)
CPU_ENGINE, GPU_ENGINE = "openvino-", "vllm-"
"""Beginnings of the names of variants that no GPU and that no CPU runs."""


@dataclass(frozen=True)
class MemoryFault:
    """A stage that does not fit into memory.

    Attributes:
        stage: the stage.
        what: what does not fit: the stage, or a part of it.
        needed: bytes that it needs.
        available: bytes that there are.
        formula: what they are for.
    """

    stage: str
    what: str
    needed: float
    available: float
    formula: str

    def __str__(self) -> str:
        """Return a sentence."""
        needed, available = (format_value(n, "bytes") for n in (self.needed, self.available))
        return f"{self.what} needs {needed} and there are {available}: {self.formula}"


@dataclass(frozen=True)
class Sheet:
    """The plan of one model on one kind of machine.

    Attributes:
        work: what the model asks for.
        machines: the machines.
        cells: the quantities by stage and row.
        faults: the stages that do not fit into memory.
        devices: the devices that each stage needs.
    """

    work: Work
    machines: Machines
    cells: Mapping[str, Mapping[str, Cell]]
    faults: tuple[MemoryFault, ...]
    devices: Mapping[str, int]

    @property
    def model(self) -> str:
        """Name of the model."""
        return self.work.model

    @property
    def latency(self) -> Quantity:
        """The time that `serving.latency_slo_ms` limits: of one row, or to the first token."""
        speed = self.cells["online"]["speed"]
        return speed[0] if self.work.online.generation is None else speed[-1]

    @property
    def hints(self) -> tuple[str, ...]:
        """What the plan takes for granted and the pipeline file does not say."""
        notes = (DISTURBED,) if self.machines.device.disturbed else ()
        variant, is_cpu = self.work.online.variants[0], self.machines.device.is_cpu
        name, weights = variant.name, f"weights in {variant.data_type}"
        if not is_cpu and name.startswith(CPU_ENGINE):
            return (
                *notes,
                f"{name} answers on CPUs only; {self.machines} is planned as vLLM would serve "
                f"{weights}; see export.candidates",
            )
        if is_cpu and name.startswith(GPU_ENGINE):
            return (
                *notes,
                f"{name} answers on GPUs only; {self.machines} is planned as OpenVINO would serve "
                f"{weights}; see export.candidates",
            )
        return notes

    def as_json(self) -> dict[str, object]:
        """Return what `--json` prints."""
        return {
            "model": self.model,
            "machines": self.machines,
            "cells": self.cells,
            "faults": self.faults,
            "hints": self.hints,
        }

    @property
    def fits(self) -> bool:
        """Whether every stage fits into the machine's memory."""
        return not self.faults


def plan_sheet(
    work: Work,
    machines: Machines,
    fits: Fits | None = None,
    load_per_second: float | None = None,
) -> Sheet:
    """Return the sheet of a model.

    Args:
        work: what the pipeline asks for.
        machines: the machines that each stage runs on.
        fits: what was fitted on measurements of the machine, by quantity.
        load_per_second: rows or tokens that are asked for online; None: as many as it can answer.
    """
    variant, known = work.online.variants[0], fits or {}
    cells = {
        "training": training_cells(work, work.training, machines, known),
        "online": serving_cells(work, work.online, variant, machines, known, load_per_second),
        "batch": batch_cells(work, variant, machines, known),
    }
    faults = tuple(_memory_faults(work, machines, cells))
    if (fault := _cache_fault(work)) is not None:
        faults = (*faults, fault)
    return Sheet(work, machines, cells, faults, _devices_of(work, machines))


def _memory_faults(
    work: Work, machines: Machines, cells: Mapping[str, Mapping[str, Cell]]
) -> Iterator[MemoryFault]:
    """Yield the stages that do not fit. Workers of a CPU share its memory."""
    available = machines.device.memory
    for stage in STAGES:
        memory, sharing = cells[stage]["memory"][0], 1
        if machines.device.is_cpu and stage == "training":
            sharing = work.training.workers
        if memory.value * sharing > available:
            formula = memory.formula if sharing == 1 else f"{sharing} workers x ({memory.formula})"
            generation = work.online.generation
            if stage != "training" and generation and generation.tensor_parallel < machines.count:
                formula += "; serving.generation.tensor_parallel_size splits it over devices"
            yield MemoryFault(stage, stage, memory.value * sharing, available, formula)


def _cache_fault(work: Work) -> MemoryFault | None:
    """Return the fault of a KV cache that is too small for one sequence."""
    generation = work.online.generation
    if generation is None:
        return None
    decoder, split = generation.decoder, generation.tensor_parallel
    per_token = decoder.kv_bytes_per_token(bytes_of_type(generation.kv_data_type))
    one = per_token * split / decoder.cache_split(split) * generation.context
    if one <= generation.cache_bytes:
        return None
    formula = (
        f"{format_value(per_token, 'bytes')} of each token; set serving.generation.cache_size_gib"
    )
    what = f"the KV cache of one sequence of {generation.context:,} tokens"
    return MemoryFault("online", what, one, generation.cache_bytes, formula)


def _devices_of(work: Work, machines: Machines) -> Mapping[str, int]:
    """Return the devices that each stage needs; a CPU is one device."""
    if machines.device.is_cpu:
        return dict.fromkeys(STAGES, 1)
    generation = work.online.generation
    serving = 1 if generation is None else generation.tensor_parallel
    training = 1 if work.training.engine == "xgboost" else work.training.workers
    return {"training": training, "online": serving, "batch": serving}
