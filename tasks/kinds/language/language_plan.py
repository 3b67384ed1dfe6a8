"""What the training and the serving of a language model ask of a machine."""

import math
from dataclasses import replace
from pathlib import Path

from millrace.export.language.token_pieces import speed_lengths
from millrace.models.common.errors import InputError
from millrace.models.common.installation import Installation
from millrace.models.config.model_uri import is_model_uri
from millrace.models.config.pipeline import Pipeline
from millrace.models.config.training_spec import ModelSpec
from millrace.models.planner.decoder import Decoder
from millrace.models.planner.decoder_config import NAMES, decoder_from_config, read_decoder
from millrace.models.planner.serving_memory import WIDTHS, weight_bytes
from millrace.models.planner.training_flops import flops_per_token
from millrace.models.planner.work import Generation, ServingWork, TrainingWork, Variant, Work
from millrace.models.planner.worker_memory import Load, memory_of, shape_of_sizes
from millrace.tasks.kinds.data_facts import ReadFacts

FLOAT = 4
TOKEN_BYTES = 4
"""Bytes of a token in the token table, and about of its text."""
KERNELS_OF_A_LAYER = 60
"""Operations that a step starts for a layer, forward, backward and in the optimizer; a guess, which
the weight of the term corrects on a CPU."""
OPTIMIZER_TRAFFIC = 7
MOMENTS = {"adamw": 2.0, "muon": 1.0}
"""Numbers that an optimizer keeps of a weight; Muon's matrices are most of a decoder."""
WEIGHTS = {**{each: each for each in WIDTHS}, "w8a8": "int8", "awq": "int4", "gptq": "int4"}
"""Data type of the weights by a word in a variant's name."""
COMPLETE = (*(keys[0] for keys in NAMES.values()), "num_key_value_heads", "tie_word_embeddings")
"""Keys of `model.params` that say all sizes of a decoder; without one, transformers is asked."""


def plan_decoder(pipeline: Pipeline, installation: Installation, read_facts: ReadFacts) -> Work:
    """Return what a decoder asks for.

    Args:
        pipeline: the pipeline, with the versions that it names pinned.
        installation: has the registry, for a base model that is a registered version.
        read_facts: reads what is known of the data, where `training.max_steps` is left out.

    Raises:
        InputError: the decoder's sizes cannot be read.
        TransientError: MLflow or its artifact store does not answer.
    """
    if is_model_uri(pipeline.model.pretrained):
        from millrace.tasks.kinds.language.language_train import fetch_base

        pipeline = fetch_base(pipeline, installation)
    decoder = decoder_of(pipeline.model, pipeline.folder)
    generation, spec = pipeline.serving.generation, pipeline.training
    require_heads(
        "serving.generation.tensor_parallel_size", generation.tensor_parallel_size, decoder
    )
    if spec.parallel == "tp":
        require_heads("training.num_workers", spec.workers, decoder)
    context = pipeline.model.tokenizer.max_tokens
    answer = min(pipeline.batch.sampling.max_tokens, context // 2)
    variants = tuple(_variant(name, decoder) for name in pipeline.export.candidates)
    serving = ServingWork(
        variants=variants,
        flops_per_unit=decoder.forward_flops(context / 2),
        bytes_per_unit=decoder.kv_bytes_per_token() * (context - answer / 2),
        kernels=KERNELS_OF_A_LAYER * decoder.layers,
        call_units=generation.max_num_seqs,
        instances=1,
        threads=None,
        input_bytes=TOKEN_BYTES,
        output_bytes=TOKEN_BYTES,
        engine="openvino",
        measured_prompt=speed_lengths(context)[0],
        generation=Generation(
            decoder=decoder,
            streams=generation.max_num_seqs,
            context=context,
            prompt_tokens=context - answer,
            output_tokens=answer,
            cache_bytes=generation.cache_size_gib * 2.0**30,
            tensor_parallel=generation.tensor_parallel_size,
        ),
    )
    return Work(
        model=pipeline.name,
        unit="tokens",
        parameters=decoder.parameters,
        training=_training(pipeline, decoder, read_facts),
        online=serving,
        batch=replace(serving, threads=pipeline.batch.threads_per_actor),
    )


def require_heads(key: str, parts: int, decoder: Decoder) -> None:
    """Refuse a number of devices over which the heads cannot be split evenly.

    Raises:
        InputError: the number does not divide the heads.
    """
    if decoder.heads % parts:
        raise InputError(
            f"{key} {parts} does not divide the {decoder.heads} heads of the decoder",
            seen=str(parts),
            valid=", ".join(str(n) for n in range(1, decoder.heads + 1) if decoder.heads % n == 0),
        )


def _training(pipeline: Pipeline, decoder: Decoder, read_facts: ReadFacts) -> TrainingWork:
    spec, context = pipeline.training, pipeline.model.tokenizer.max_tokens
    trained, adapters = _trained(pipeline.model, decoder)
    memory = memory_of(
        shape_of_sizes(decoder, trained),
        Load(
            batch_size=spec.batch_rows,
            context=context,
            parallel=spec.parallel,
            workers=spec.workers,
            half=spec.precision == "bf16",
            checkpointing=spec.gradient_checkpointing,
            moments=MOMENTS[spec.optimizer],
        ),
    )
    matrices = decoder.matrix_parameters
    frozen = matrices if adapters else 0
    width = decoder.layers * decoder.score_width
    tokens = spec.batch_rows * spec.gradient_accumulation_steps * context
    return TrainingWork(
        workers=spec.workers,
        step_units=tokens / (spec.workers if spec.parallel == "tp" else 1),
        steps=_steps(pipeline, read_facts),
        flops_per_unit=flops_per_token(adapters or matrices, frozen, width, context),
        memory={name: getattr(memory, name) for name in vars(memory)},
        bytes_per_step=3 * (memory.activations + memory.logits)
        + 2 * memory.weights
        + OPTIMIZER_TRAFFIC * memory.gradients,
        kernels=KERNELS_OF_A_LAYER * decoder.layers * spec.gradient_accumulation_steps,
        gradient_bytes=_shared_bytes(pipeline, decoder, trained),
        data_type="bf16" if spec.precision == "bf16" else "fp32",
        bytes_per_unit=TOKEN_BYTES,
        checkpoint_bytes=FLOAT * decoder.parameters + MOMENTS[spec.optimizer] * FLOAT * trained,
        items=spec.batch_rows * spec.gradient_accumulation_steps,
        strategy=spec.parallel,
        threads=None,
    )


def _shared_bytes(pipeline: Pipeline, decoder: Decoder, trained: int) -> float:
    """Return the bytes whose all-reduce takes what the workers of a step send to each other.

    With ddp the gradients. With fsdp the weights are gathered twice and the gradients scattered,
    each half of an all-reduce (ZeRO, section 7). With tp each layer's outputs, twice in the forward
    and twice in the backward pass (Megatron-LM, 1909.08053).
    """
    spec, context = pipeline.training, pipeline.model.tokenizer.max_tokens
    width = 2 if spec.precision == "bf16" else FLOAT
    if spec.parallel == "tp":
        tokens = spec.batch_rows * spec.gradient_accumulation_steps * context
        return 4.0 * decoder.layers * tokens * decoder.hidden * width
    if spec.parallel == "fsdp":
        return (2.0 * width * decoder.parameters + FLOAT * trained) / 2
    return float(FLOAT * trained)


def _steps(pipeline: Pipeline, read_facts: ReadFacts) -> int | None:
    """Return the number of steps; None if only the tokens of the data would say it."""
    spec, context = pipeline.training, pipeline.model.tokenizer.max_tokens
    if spec.max_steps is not None:
        return spec.max_steps
    facts = read_facts()
    if facts is None or facts.train_rows is None or facts.row_bytes is None:
        return None
    tokens = facts.train_rows * facts.row_bytes / TOKEN_BYTES
    sharing = 1 if spec.parallel == "tp" else spec.workers
    of_a_step = spec.batch_rows * spec.gradient_accumulation_steps * context * sharing
    return spec.epochs * math.ceil(tokens / of_a_step)


def _trained(model: ModelSpec, decoder: Decoder) -> tuple[int, int]:
    """Return the trained parameters, and of them those of low-rank adapters (0: no adapters)."""
    if model.lora is None:
        return decoder.parameters, 0
    heads, groups = decoder.heads * decoder.head_width, decoder.kv_heads * decoder.head_width
    widths = [(decoder.hidden, heads), (heads, decoder.hidden)] + 2 * [(decoder.hidden, groups)]
    mlps = [(decoder.hidden, decoder.intermediate)] * (3 if decoder.gated else 2)
    pairs = sum(a + b for a, b in widths + mlps)
    adapters = model.lora.r * decoder.layers * pairs
    return adapters, adapters


def _variant(name: str, decoder: Decoder) -> Variant:
    data_type = next((WEIGHTS[word] for word in WEIGHTS if word in name), "fp32")
    group = 128 if data_type == "int4" else None
    return Variant(name, data_type, weight_bytes(decoder.parameters, data_type, group))


def decoder_of(model: ModelSpec, folder: Path) -> Decoder:
    """Return the sizes of the decoder that a pipeline trains.

    Raises:
        InputError: the base model's configuration cannot be read, or lacks a size.
    """
    if model.pretrained is not None:
        return _pretrained(model, folder)
    params = {**model.params, "vocab_size": model.tokenizer.vocab_size}
    if all(params.get(key) is not None for key in COMPLETE):
        config = {"model_type": params.get("architecture"), **params}
        return decoder_from_config(config, "model.params")
    from millrace.models.language.causal_lm import config_of
    from millrace.models.language.recipe import DecoderSpec

    spec = DecoderSpec(model.tokenizer.vocab_size, model.tokenizer.max_tokens, model.params)
    return decoder_from_config(config_of(spec).to_dict(), "model.params")


def _pretrained(model: ModelSpec, folder: Path) -> Decoder:
    from millrace.models.families.pretrained import resolve_pretrained

    name = resolve_pretrained(str(model.pretrained), folder)
    path = Path(name) / "config.json"
    if not path.is_absolute() and not path.is_file():
        path = _download_config(name, model.revision)
    return read_decoder(path)


def _download_config(name: str, revision: str | None) -> Path:
    """Return the `config.json` of a model on the hub.

    Raises:
        InputError: the hub does not know the model, or cannot be reached.
    """
    from huggingface_hub import hf_hub_download

    from millrace.models.families.pretrained import unreadable

    try:
        return Path(hf_hub_download(name, "config.json", revision=revision))
    except Exception as error:  # the network may fail in any way
        raise unreadable(f"the configuration of model.pretrained {name!r}", error) from error
