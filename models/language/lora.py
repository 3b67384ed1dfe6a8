"""Low-rank adapters with the library peft (Hu et al. 2021, "LoRA")."""

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, cast

from millrace.models.common.errors import InputError, nearest
from millrace.models.language.recipe import Lora

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ADAPTER = "adapter"
"""Folder in a checkpoint with the adapter's own weights."""
_EVERY_LINEAR = "all-linear"


def with_adapters(decoder: "PreTrainedModel", lora: Lora) -> "PreTrainedModel":
    """Return the decoder with adapters; only the adapters are trainable.

    Raises:
        InputError: the decoder lacks a layer that `lora.target_modules` names, or peft cannot adapt
            the decoder.
    """
    from peft import LoraConfig, get_peft_model

    _require_modules(decoder, lora)
    targets = _EVERY_LINEAR if lora.target_modules is None else list(lora.target_modules)
    config = LoraConfig(
        task_type="CAUSAL_LM",
        r=lora.r,
        lora_alpha=cast(int, lora.alpha),
        lora_dropout=lora.dropout,
        target_modules=targets,
    )
    try:
        with warnings.catch_warnings():
            # peft uses a name that is deprecated in transformers
            warnings.filterwarnings("ignore", "`is_gradient_checkpointing`", FutureWarning)
            return cast("PreTrainedModel", get_peft_model(decoder, config))
    except ValueError as error:
        raise InputError(
            "the LoRA adapters of model.lora do not fit the decoder",
            seen=" ".join(str(error).split()),
            valid=", ".join(_names(decoder)),
            hint="name linear layers in model.lora.target_modules",
        ) from error


def merge_adapter(decoder: "PreTrainedModel", folder: Path) -> "PreTrainedModel":
    """Save the adapter to `folder/adapter`, and return the decoder with the adapter merged in.

    `decoder` itself loses its adapters.
    """
    adapted: object = decoder
    adapted.save_pretrained(folder / ADAPTER)  # type: ignore[attr-defined]
    return cast("PreTrainedModel", adapted.merge_and_unload())  # type: ignore[attr-defined]


def _require_modules(decoder: "PreTrainedModel", lora: Lora) -> None:
    names = _names(decoder)
    for wanted in lora.target_modules or ():
        if wanted not in names:
            raise InputError(
                f"model.lora.target_modules {wanted!r} is not a layer of the decoder",
                seen=wanted,
                valid=", ".join(names),
                hint=nearest(wanted, names),
            )


def _names(decoder: "PreTrainedModel") -> list[str]:
    """Return the last parts of the names of all layers with a weight matrix."""
    with_matrix = (
        name.rpartition(".")[2]
        for name, module in decoder.named_modules()
        if getattr(getattr(module, "weight", None), "ndim", 0) == 2
    )
    return sorted(set(with_matrix))
