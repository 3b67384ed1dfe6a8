"""Low-rank adapters by peft: Hu et al. 2021, "LoRA"."""

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, cast

from millrace.models.common.errors import InputError, nearest
from millrace.models.language.recipe import Lora

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ADAPTER = "adapter"
"""Folder of a checkpoint where the adapter is kept by itself."""
_EVERY_LINEAR = "all-linear"


def with_adapters(decoder: "PreTrainedModel", lora: Lora) -> "PreTrainedModel":
    """Return the decoder with adapters, which alone are trained.

    Raises:
        InputError: it has no layers of these names, or peft cannot adapt them.
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
            # peft asks transformers by a name that is deprecated there
            warnings.filterwarnings("ignore", "`is_gradient_checkpointing`", FutureWarning)
            return cast("PreTrainedModel", get_peft_model(decoder, config))
    except ValueError as error:
        raise InputError(
            "model.lora does not fit the decoder",
            seen=" ".join(str(error).split()),
            valid=", ".join(_names(decoder)),
            hint="name linear layers in model.lora.target_modules",
        ) from error


def merged(decoder: "PreTrainedModel", folder: Path) -> "PreTrainedModel":
    """Save the adapter to `folder/adapter`, and return the decoder with it merged into its weights.

    The adapters are gone from the decoder that was given.
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
    """Return the last parts of the names of the layers that have a matrix."""
    with_matrix = (
        name.rpartition(".")[2]
        for name, module in decoder.named_modules()
        if getattr(getattr(module, "weight", None), "ndim", 0) == 2
    )
    return sorted(set(with_matrix))
