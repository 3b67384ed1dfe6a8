"""A decoder in compressed-tensors, which vLLM opens, by llm-compressor.

w8a8 has weights of 8 bits by channel, and activations of 8 bits by token as they come; gptq and awq
have weights of 4 bits in groups, without zero points. All but the head; what is left is bfloat16.
Reads a checkpoint as transformers writes it, and writes a folder. Calibration text is an npz,
`input_ids` and `lengths` of its pieces, int64 both. Works on a CPU too. Needs llmcompressor, torch
and transformers.
"""

from argparse import ArgumentParser
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .beside import copy_tokenizer

HEAD = "lm_head"
GROUPS = (128, 64, 32)
"""Weights that may share a scale: what vLLM's kernels take."""
METHODS = ("w8a8", "gptq", "awq")


def group_size(widths: Iterable[int]) -> int:
    """Return the largest group that fills the rows of all layers.

    Args:
        widths: inputs of each layer.

    Raises:
        ValueError: none does.
    """
    seen = sorted(set(widths))
    for size in GROUPS:
        if all(width % size == 0 for width in seen):
            return size
    raise ValueError(f"no group of {GROUPS} weights divides layers of {seen} inputs")


def recipe(method: str, size: int) -> list[Any]:
    """Return what is done to a model, in llm-compressor's words.

    Args:
        method: one of `METHODS`.
        size: weights that share a scale, where they are in groups.
    """
    from llmcompressor.modifiers.gptq import GPTQModifier
    from llmcompressor.modifiers.quantization import QuantizationModifier
    from llmcompressor.modifiers.transform import AWQModifier

    if method == "w8a8":
        return [GPTQModifier(targets=["Linear"], scheme="W8A8", ignore=[HEAD])]
    # no zero points, which transformers 5.23 does not read out of what is packed
    weights = {"num_bits": 4, "type": "int", "symmetric": True}
    weights |= {"strategy": "group", "group_size": size}
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    if method == "gptq":
        return [GPTQModifier(config_groups=groups, ignore=[HEAD])]
    return [AWQModifier(), QuantizationModifier(config_groups=groups, ignore=[HEAD])]


def texts(path: Path) -> list[dict[str, Any]]:
    """Return what the decoder reads of each piece of calibration text, a batch of one each."""
    import torch

    with np.load(path, allow_pickle=False) as file:
        ids, lengths = file["input_ids"], file["lengths"]
    pieces = np.split(ids, np.cumsum(lengths)[:-1])
    batches = [torch.from_numpy(piece)[None] for piece in pieces if len(piece) > 1]
    return [{"input_ids": each, "attention_mask": torch.ones_like(each)} for each in batches]


def compress(model: Any, method: str, data: Sequence[dict[str, Any]]) -> None:
    """Compress a model in place."""
    import torch
    from llmcompressor import oneshot
    from llmcompressor.pipelines.cache import IntermediatesCache

    if not torch.accelerator.is_available():
        # awq pins what it keeps for an accelerator, whether there is one or not
        IntermediatesCache.pin_memory = lambda *_, **__: None
    layers = [m for n, m in model.named_modules() if isinstance(m, torch.nn.Linear) and n != HEAD]
    size = group_size(m.in_features for m in layers) if method != "w8a8" else 0
    oneshot(
        model=model,
        recipe=recipe(method, size),
        dataset=torch.utils.data.DataLoader(list(data), batch_size=None),  # type: ignore[arg-type]
        num_calibration_samples=len(data),
        pipeline="sequential",
    )


def main() -> None:
    """Convert one folder."""
    made = ArgumentParser(description=__doc__)
    made.add_argument("source", type=Path, help="the checkpoint, a folder")
    made.add_argument("target", type=Path, help="where to write, a new folder")
    made.add_argument("--method", choices=METHODS, required=True)
    made.add_argument("--calibration", type=Path, required=True, help="text, an npz")
    given = made.parse_args()
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(
        given.source, dtype=torch.bfloat16, local_files_only=True, trust_remote_code=False
    )
    compress(model, given.method, texts(given.calibration))
    model.save_pretrained(given.target, save_compressed=True)
    copy_tokenizer(given.source, given.target)


if __name__ == "__main__":
    main()
