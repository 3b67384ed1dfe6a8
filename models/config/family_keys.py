"""Which keys of a pipeline file go with which family."""

from collections.abc import Iterator, Mapping
from typing import Any, get_args

from millrace.models.config import Spec
from millrace.models.config.language_spec import DEFAULT_FORMS, LanguageForm
from millrace.models.config.model_uri import is_model_uri

CAUSAL_LM = "causal_lm"
WITHOUT_TOKENS = ("mlp", "cnn")
FAMILIES = (*WITHOUT_TOKENS, "text_classifier", CAUSAL_LM)
LANGUAGE_FORMS: tuple[str, ...] = get_args(LanguageForm)
OF_LANGUAGE: Mapping[str, tuple[str, ...]] = {
    "model": ("lora",),
    "training": (
        "optimizer",
        "max_steps",
        "gradient_accumulation_steps",
        "gradient_checkpointing",
        "warmup_ratio",
        "parallel",
        "checkpoint_steps",
        "log_steps",
    ),
    "export": ("max_perplexity_increase", "group_size", "ratio"),
    "serving": ("generation",),
    "batch": ("prompt", "sampling"),
}
"""Keys that only language models have."""
OF_OTHERS: Mapping[str, tuple[str, ...]] = {
    "training": (
        "find_unused_parameters",
        "distillation",
        "pruning",
        "quantization_aware",
        "compare",
        "checkpoint_every",
    ),
    "export": ("max_metric_loss", "calibration_rows"),
    "serving": (
        "max_batch_size",
        "max_queue_delay_microseconds",
        "accelerator",
        "intra_op_thread_count",
    ),
}
"""Keys that language models have not."""


def with_forms(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values of a pipeline file; a language model has forms of its own by default."""
    model, export = values.get("model"), values.get("export") or {}
    if not isinstance(model, Mapping) or model.get("family") != CAUSAL_LM:
        return values
    if not isinstance(export, Mapping) or "candidates" in export:
        return values
    return {**values, "export": {**export, "candidates": DEFAULT_FORMS}}


def misfits(family: str, parts: Mapping[str, Spec]) -> Iterator[str]:
    """Yield what does not go with the family, in words.

    Args:
        family: `model.family`.
        parts: parts of the pipeline file by name. A key with its default value says nothing: a
            pipeline file that was resolved has them all.
    """
    if family not in FAMILIES and ":" not in family:
        return  # there is none of this name, which is said first
    is_language = family == CAUSAL_LM
    for part, keys in (OF_OTHERS if is_language else OF_LANGUAGE).items():
        for key in keys:
            if _is_set(parts[part], key):
                yield f"{part}.{key} does not go with the family {family}"
    yield from _values_apart(family, parts)
    if is_language and (kind := getattr(parts.get("rollout"), "kind", "direct")) != "direct":
        yield f"rollout.kind: {kind} shares requests out, which the streams of a {family} are not"
    for name in getattr(parts["export"], "candidates", ()):
        if (name in LANGUAGE_FORMS) != is_language:
            valid = ", ".join(LANGUAGE_FORMS) if is_language else "onnx-fp32, onnx-int8-dynamic, …"
            yield f"export.candidates: {name} is no form of the family {family}, which has {valid}"


def _values_apart(family: str, parts: Mapping[str, Spec]) -> Iterator[str]:
    """Yield values of training's keys that do not go with another one's."""
    model, training, batch = parts["model"], parts["training"], parts["batch"]
    if family != CAUSAL_LM and is_model_uri(getattr(model, "pretrained", None)):
        yield f"model.pretrained: a registered version does not go with the family {family}"
    if getattr(training, "optimizer", "") == "muon" and getattr(training, "parallel", "") != "ddp":
        yield "training.optimizer: muon takes whole matrices, which training.parallel: ddp has"
    if family in WITHOUT_TOKENS and _is_set(batch, "max_num_batched_tokens"):
        yield f"batch.max_num_batched_tokens: a model of the family {family} reads no tokens"


def _is_set(part: Spec, key: str) -> bool:
    default = type(part).model_fields[key].get_default(call_default_factory=True)
    return bool(getattr(part, key) != default)
