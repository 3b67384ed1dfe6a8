"""What the training and the serving of a network ask of a machine."""

import json
import logging
import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from importlib.metadata import version

from millrace.models.common.hardware import memory_bytes
from millrace.models.common.installation import Installation
from millrace.models.common.machine_cache import machine_cache
from millrace.models.config.pipeline import Pipeline
from millrace.models.inference.row_batches import PLACES
from millrace.models.planner.network_cost import KeptCounts, NetworkCost
from millrace.models.planner.serving_memory import WIDTHS, weight_bytes
from millrace.models.planner.work import ServingWork, TrainingWork, Variant, Work
from millrace.tasks.kinds.data_facts import DataFacts, ReadFacts, require_facts

log = logging.getLogger("millrace")
FLOAT = 4
"""Bytes of a float32, in which weights, gradients and the optimizer's states are."""
OPTIMIZER_STATES = 2
"""Numbers that AdamW keeps of a weight."""
OPTIMIZER_TRAFFIC = 7
"""Numbers of a weight that a step of AdamW reads and writes: the weight, its gradient, both
moments, and three of them written."""
ANSWER = 4
HALF = ("bf16", "fp16")
BATCH_ROWS = 1024
"""Rows of a call in a batch job, where `batch.batch_size` is left out."""


def plan_network(pipeline: Pipeline, installation: Installation, read_facts: ReadFacts) -> Work:
    """Return what a network asks for.

    Args:
        pipeline: the pipeline.
        installation: not needed for a network.
        read_facts: reads what is known of the data.

    Raises:
        InputError: the network cannot be built, or the data's columns are not known.
    """
    facts = require_facts(read_facts)
    cost = count_family(pipeline, facts)
    unit_bytes = facts.row_bytes or facts.raw_width * FLOAT
    variants = variants_of(pipeline, cost.parameters)
    serving = pipeline.serving
    online = ServingWork(
        variants=variants,
        flops_per_unit=cost.forward_flops,
        activation_flops=cost.activation_flops,
        function_elements=cost.function_elements,
        bytes_per_unit=2 * cost.saved_bytes,
        kernels=cost.forward_kernels,
        input_bytes=cost.input_bytes,
        output_bytes=float(ANSWER * facts.outputs),
        call_units=serving.max_batch_size,
        instances=serving.instance_count,
        threads=serving.intra_op_thread_count,
    )
    return Work(
        model=pipeline.name,
        unit="rows",
        parameters=cost.parameters,
        training=_training(pipeline, facts, cost, unit_bytes),
        online=online,
        batch=nightly_of(online, pipeline, facts),
        batch_units=nightly_rows(pipeline, facts),
    )


def nightly_rows(pipeline: Pipeline, facts: DataFacts) -> int | None:
    """Return the rows of the nightly job: the dataset's, or those of `batch.input`.

    Of an input only a Parquet file says without being read how many it has.
    """
    if pipeline.batch.input is None:
        return facts.rows
    file = pipeline.folder / pipeline.batch.input
    if file.suffix != ".parquet" or not file.is_file():
        return None
    import pyarrow as pa
    import pyarrow.parquet as pq

    with suppress(OSError, pa.ArrowException):
        return int(pq.read_metadata(file).num_rows)
    return None


def nightly_of(online: ServingWork, pipeline: Pipeline, facts: DataFacts) -> ServingWork:
    """Return the batch job of a model that answers rows, from its service."""
    batch = pipeline.batch
    return replace(
        online,
        call_units=_rows_of_a_call(pipeline, facts),
        instances=batch.num_actors or 1,
        threads=batch.threads_per_actor,
    )


def _rows_of_a_call(pipeline: Pipeline, facts: DataFacts) -> int:
    """Return the rows of a call in a batch job; of texts, those of the longest."""
    batch, tokens = pipeline.batch, pipeline.model.tokenizer.max_tokens
    rows = batch.batch_size or BATCH_ROWS
    if not facts.has_text:
        return rows
    return max(1, min(rows, (batch.max_num_batched_tokens or PLACES) // tokens))


def _training(
    pipeline: Pipeline, facts: DataFacts, cost: NetworkCost, unit_bytes: float
) -> TrainingWork:
    spec = pipeline.training
    rows = spec.batch_rows
    steps = None
    if facts.train_rows is not None:
        steps = spec.epochs * math.ceil(facts.train_rows / (rows * spec.workers))
    weights, trained = FLOAT * cost.parameters, FLOAT * cost.trained
    kept = cost.saved_bytes * rows
    training = TrainingWork(
        workers=spec.workers,
        step_units=rows,
        steps=steps,
        flops_per_unit=cost.training_flops,
        memory={
            "weights": weights,
            "gradients": trained,
            "optimizer": OPTIMIZER_STATES * trained,
            # DDP copies the gradients to send them; see `gradient_as_bucket_view` of torch.
            "gradient buckets": trained if spec.workers > 1 else 0,
            "activations": kept,
        },
        bytes_per_step=3 * kept + 2 * weights + OPTIMIZER_TRAFFIC * trained,
        kernels=cost.training_kernels,
        gradient_bytes=trained,
        data_type="fp32" if spec.precision in ("auto", "fp32") else spec.precision,
        bytes_per_unit=unit_bytes,
        checkpoint_bytes=weights + OPTIMIZER_STATES * trained,
        items=rows,
        reads_texts=facts.has_text,
    )
    return _in_half(training) if training.data_type in HALF else training


def _in_half(training: TrainingWork) -> TrainingWork:
    """Return the training with matrix products in 16 bits.

    The weights are kept once more in 16 bits. Of texts most of what is kept for the backward pass
    is in 16 bits too; the norms of other networks keep float32.
    """
    memory = dict(training.memory)
    kept, weights = memory["activations"], memory["weights"]
    saved = kept / 2 if training.reads_texts else 0.0
    return replace(
        training,
        memory={**memory, "weights": 1.5 * weights, "activations": kept - saved},
        bytes_per_step=training.bytes_per_step - 3 * saved,
    )


def variants_of(pipeline: Pipeline, parameters: int) -> tuple[Variant, ...]:
    """Return the variants that the pipeline exports, each by the widest type in its name."""
    found = []
    for name in pipeline.export.candidates:
        data_type = next((each for each in WIDTHS if each in name), "fp32")
        found.append(Variant(name, data_type, weight_bytes(parameters, data_type)))
    return tuple(found)


def count_family(pipeline: Pipeline, facts: DataFacts) -> NetworkCost:
    """Build the module that a run would train, and count it; or return the count that is kept.

    A count is kept for the families of Millrace: torch, which counts, takes a second to import.

    Raises:
        InputError: the module cannot be built.
    """
    tokenizer = pipeline.model.tokenizer
    inputs: dict[str, int] = {"in_features": facts.in_features}
    if facts.has_text:
        inputs = {
            "vocab_size": tokenizer.vocab_size,
            "padding": 0,
            "max_tokens": tokenizer.max_tokens,
        }
    if ":" in pipeline.model.family or pipeline.model.pretrained is not None:
        large = _count_if_large(pipeline, inputs, facts.outputs)
        return large or _count(pipeline, inputs, facts.outputs, "cpu")
    kept = KeptCounts(machine_cache())
    spec = pipeline.model.model_dump(mode="json", include={"family", "params"})
    named = json.dumps([version("millrace"), spec, inputs, facts.outputs], sort_keys=True)
    key = sha256(named.encode()).hexdigest()
    if (known := kept.read(key)) is not None:
        return known
    log.info("counting the operations of %s; the figures are kept", pipeline.name)
    counted = _count(pipeline, inputs, facts.outputs, "meta")
    kept.write(key, counted)
    return counted


def _count(pipeline: Pipeline, inputs: Mapping[str, int], outputs: int, device: str) -> NetworkCost:
    """Build and count the module."""
    import numpy as np
    import torch

    from millrace.models.families.count_network import COUNTED_ROWS, count_network
    from millrace.models.families.family import build_module

    tokens = inputs.get("max_tokens")
    example = (
        np.zeros((COUNTED_ROWS, inputs["in_features"]), np.float32)
        if tokens is None
        else np.ones((COUNTED_ROWS, tokens), np.int64)
    )
    with torch.device(device):
        module = build_module(pipeline.model, pipeline.folder, inputs, outputs)
    return count_network(module, example)


def _count_if_large(
    pipeline: Pipeline, inputs: Mapping[str, int], outputs: int
) -> NetworkCost | None:
    """Return the count of a user's module whose weights fill the memory; None for another.

    It is counted on the device `meta`, without memory. What cannot be built there is counted on the
    CPU: the code of a module may do anything. A pretrained encoder has its weights from files.
    """
    if pipeline.model.pretrained is not None:
        return None
    with suppress(Exception):
        cost = _count(pipeline, inputs, outputs, "meta")
        return cost if FLOAT * cost.parameters > memory_bytes() / 2 else None
    return None
