"""The online and the batch column of a decoder that generates: memory, streams and tokens."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from millrace.models.planner.catalogue import Device, Machines
from millrace.models.planner.estimates import Fits, estimate_quantity
from millrace.models.planner.fit import Estimate
from millrace.models.planner.published_training import published_fit
from millrace.models.planner.quantity import (
    Cell,
    Quantity,
    cost_quantities,
    estimated,
    format_value,
)
from millrace.models.planner.serving_memory import ServingMemory, bytes_of_type
from millrace.models.planner.serving_time import ServingLoad, first_token_terms, token_terms
from millrace.models.planner.work import Generation, ServingWork, Variant, Work
from millrace.models.planner.work_terms import latency_terms, unit_terms

RUNTIME_BYTES = 3.5 * 2**30
"""Memory of a GPU that a serving runtime takes beside weights and cache, as AISimulate's system
files reserve it."""
FITTED_ON: Mapping[str, str] = {
    "token_time": "of decoders without experts",
    "expert_token_time": "of decoders with experts and without",
    "first_token_time": "with vLLM",
}
"""The published rows that each fit of `fits.yaml` is made on, in words."""


@dataclass(frozen=True)
class Stage:
    """A stage of a plan that answers requests.

    Attributes:
        work: what the pipeline asks for.
        serving: what the stage asks for.
        variant: the served variant.
        machines: the machines, all of which serve.
        fits: what was fitted on measurements of the machine.
    """

    work: Work
    serving: ServingWork
    variant: Variant
    machines: Machines
    fits: Fits


def generation_quantities(
    stage: Stage, generation: Generation, load_per_second: float | None
) -> Mapping[str, Cell]:
    """Return the cells of a stage that generates tokens.

    Args:
        stage: the stage.
        generation: how the decoder generates.
        load_per_second: tokens that are asked for; None: as many as can be done.
    """
    device, decoder = stage.machines.device, generation.decoder
    variant, split = stage.variant, generation.tensor_parallel
    per_token = decoder.kv_bytes_per_token(bytes_of_type(generation.kv_data_type))
    room = memory_of(generation, variant, device, per_token * split / decoder.cache_split(split))
    asked, streams = generation, streams_of(generation, room)
    generation = replace(generation, streams=streams)
    serving = replace(stage.serving, call_units=streams)
    stage = replace(stage, serving=serving)
    between = time_between_tokens(stage, generation)
    replicas = max(1, stage.machines.count // generation.tensor_parallel)
    rate = _rate(generation, replicas, between)
    paid = replace(stage.machines, count=max(stage.machines.count, split))
    moved = (serving.input_bytes + serving.output_bytes) * rate.value
    return {
        "memory": (
            _memory(generation, variant, device),
            Quantity(
                "of KV cache a token",
                per_token,
                "bytes",
                f"{decoder.kv_numbers_per_token:,} numbers in {generation.kv_data_type}",
                "2·L·kv_heads·d (kipply); latent attention: 2405.04434",
            ),
        ),
        "compute": (
            Quantity(
                "a token",
                serving.flops_per_unit,
                "operations",
                "2 per parameter, and attention",
                "PaLM, appendix B",
            ),
        ),
        "speed": (between, rate, _first_token(stage, generation)),
        "IO": (
            Quantity("of text", moved, "bytes per second", f"about 4 bytes of a token x {rate}"),
        ),
        "concurrency": _concurrency(asked, streams, room, device),
        "data types": (
            Quantity(
                f"a weight, {variant.name}",
                bytes_of_type(variant.data_type),
                "bytes",
                f"in {variant.data_type}",
            ),
        ),
        "cost": cost_quantities(
            rate.value,
            load_per_second,
            paid.dollars_per_hour,
            paid.watts,
            stage.work.unit,
        ),
    }


def streams_of(generation: Generation, room: ServingMemory) -> int:
    """Return the sequences that are generated at a time: those whose cache fits, at least one."""
    return max(1, min(generation.streams, room.most_streams(generation.context)))


def load_of(stage: Stage, generation: Generation) -> ServingLoad:
    """Return the load that keeps every stream busy."""
    return ServingLoad(
        generation.decoder,
        stage.variant.data_type,
        generation.streams,
        generation.prompt_tokens,
        generation.output_tokens,
        generation.tensor_parallel,
    )


def time_between_tokens(stage: Stage, generation: Generation) -> Quantity:
    """Return the mean time between two tokens of a stream.

    On GPUs it is estimated by the published rows; on this machine by its own measurements, where a
    step gives each stream a token and reads what comes in of prompts.
    """
    words, streams = "between two tokens (TPOT)", generation.streams
    if stage.machines.device.is_cpu:
        read = generation.prompt_tokens / generation.output_tokens
        terms = unit_terms(stage.serving, stage.variant, stage.machines, read)
        unit = estimate_quantity("online_unit", "", terms, stage.fits)
        step = Estimate(unit.value * streams, (unit.low or 0) * streams, (unit.high or 0) * streams)
        formula = f"{streams} streams x ({unit.formula})"
        return replace(estimated(words, step, "seconds", formula, unit.source), notes=unit.notes)
    terms = token_terms(load_of(stage, generation), stage.machines.device)
    name = "token_time" if generation.decoder.experts is None else "expert_token_time"
    return _published_time(words, name, terms, load_of(stage, generation))


def _published_time(
    words: str, name: str, terms: Mapping[str, float], load: ServingLoad
) -> Quantity:
    """Return a time on GPUs by a fit on published rows.

    Args:
        words: what it is.
        name: the fit's name.
        terms: the values of its terms.
        load: the load.
    """
    fit = published_fit(name)
    formula = " + ".join(
        f"{term.replace('_', ' ')} {format_value(weight * terms[term], 'seconds')}"
        for term, weight in fit.weights.items()
        if weight * terms[term]
    )
    source = (
        f"fitted on {fit.rows:,} published rows {FITTED_ON[name]}, of AISimulate: docs/planner.md"
    )
    return estimated(words, fit.estimate(terms, load.described), "seconds", formula, source)


def _rate(generation: Generation, replicas: int, between: Quantity) -> Quantity:
    streams = generation.streams * replicas
    return Quantity(
        "",
        streams / between.value,
        "per second",
        f"{streams} streams ÷ {format_value(between.value, 'seconds')}",
        between.source,
        None if not between.high else streams / between.high,
        None if not between.low else streams / between.low,
        of="tokens",
        notes=between.notes,
    )


def _first_token(stage: Stage, generation: Generation) -> Quantity:
    """Return the mean time until a request gets its first token.

    On GPUs it is estimated by the published rows of vLLM, which Millrace uses there; on a CPU by
    its own measurements of one request with nothing beside, which has its second token then.
    """
    device = stage.machines.device
    if not device.is_cpu:
        load = load_of(stage, generation)
        terms = first_token_terms(load, device)
        words = "to the first token (TTFT), with all streams busy"
        return _published_time(words, "first_token_time", terms, load)
    terms = latency_terms(stage.serving, stage.variant, generation.prompt_tokens, stage.machines)
    return estimate_quantity(
        "online_call", "to the first token and the next, of one request", terms, stage.fits
    )


def memory_of(
    generation: Generation, variant: Variant, device: Device, kv_bytes_per_token: float
) -> ServingMemory:
    """Return what a replica may keep on its devices, with the cache that the pipeline gives it."""
    runtime = 0.0 if device.is_cpu else RUNTIME_BYTES * generation.tensor_parallel
    capacity = min(
        device.memory * generation.tensor_parallel,
        variant.weight_bytes + runtime + generation.cache_bytes,
    )
    return ServingMemory(capacity, variant.weight_bytes, runtime, kv_bytes_per_token)


def _memory(generation: Generation, variant: Variant, device: Device) -> Quantity:
    """Return the bytes on each device."""
    split = generation.tensor_parallel
    runtime = 0.0 if device.is_cpu else RUNTIME_BYTES
    parts = {
        "weights": variant.weight_bytes / split,
        "KV cache": generation.cache_bytes / split,
        "runtime": runtime,
    }
    formula = " + ".join(f"{name} {format_value(n, 'bytes')}" for name, n in parts.items() if n)
    return Quantity("on each device", sum(parts.values()), "bytes", formula)


def _concurrency(generation: Generation, streams: int, room: ServingMemory, device: Device) -> Cell:
    context, split = generation.context, generation.tensor_parallel
    runtime = 0.0 if device.is_cpu else RUNTIME_BYTES
    free = max(0.0, (device.memory - runtime) * split - room.weights)
    read, written = generation.prompt_tokens, generation.output_tokens
    word = "stream" if streams == 1 else "streams"
    return (
        Quantity(
            f"{word}, {read:,} tokens read and {written:,} written each",
            streams,
            "count",
            f"serving.generation.max_num_seqs {generation.streams}, as far as the cache has room; "
            "an answer is batch.sampling.max_tokens, at most half of the context",
        ),
        Quantity(
            f"streams of {context:,} tokens in the cache",
            room.most_streams(context),
            "count",
            f"{format_value(room.left_for_cache, 'bytes')} (serving.generation.cache_size_gib) ÷ "
            f"{format_value(room.kv_bytes_per_token * context, 'bytes')} each",
        ),
        Quantity(
            "in all of the memory",
            int(free // (room.kv_bytes_per_token * context)),
            "count",
            f"{format_value(free, 'bytes')} beside weights and runtime ÷ "
            f"{format_value(room.kv_bytes_per_token * context, 'bytes')} each",
        ),
        Quantity(
            "of context with all streams",
            room.longest_context(generation.streams),
            "count",
            f"{room.cached_tokens:,} cached tokens ÷ {generation.streams} streams",
            of="tokens",
        ),
    )
