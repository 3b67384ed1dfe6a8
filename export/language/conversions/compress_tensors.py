"""Quantizes a decoder with llm-compressor to compressed-tensors, which vLLM loads.

w8a8 has 8-bit weights with one scale per channel, and 8-bit activations scaled per token at run
time. gptq and awq have 4-bit weights in groups, without zero points. All linear layers except the
head are quantized; all other weights are bfloat16. Reads a checkpoint in the format of
transformers, and writes a folder. Calibration text is an npz file with int64 `input_ids` and the
int64 `lengths` of its chunks. Works on a CPU too. Needs llmcompressor, torch and transformers.
"""

from argparse import ArgumentParser
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .beside import copy_tokenizer

HEAD = "lm_head"
GROUPS = (128, 64, 32)
"""Group sizes (weights that share a scale) that vLLM's kernels support."""
METHODS = ("w8a8", "gptq", "awq")


def group_size(widths: Iterable[int]) -> int:
    """Return the largest group size that divides the input width of all layers.

    Args:
        widths: input width of each layer.

    Raises:
        ValueError: no group size divides all widths.
    """
    seen = sorted(set(widths))
    for size in GROUPS:
        if all(width % size == 0 for width in seen):
            return size
    raise ValueError(f"no group size of {GROUPS} divides the input widths of all layers, {seen}")


def recipe(method: str, size: int) -> list[Any]:
    """Return llm-compressor's recipe for a method.

    Args:
        method: one of `METHODS`.
        size: number of weights that share a scale; ignored by w8a8.
    """
    from llmcompressor.modifiers.gptq import GPTQModifier
    from llmcompressor.modifiers.quantization import QuantizationModifier
    from llmcompressor.modifiers.transform import AWQModifier

    if method == "w8a8":
        return [GPTQModifier(targets=["Linear"], scheme="W8A8", ignore=[HEAD])]
    # no zero points, because transformers 5.23 cannot read packed ones
    weights = {"num_bits": 4, "type": "int", "symmetric": True}
    weights |= {"strategy": "group", "group_size": size}
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    if method == "gptq":
        return [GPTQModifier(config_groups=groups, ignore=[HEAD])]
    return [AWQModifier(), QuantizationModifier(config_groups=groups, ignore=[HEAD])]


def texts(path: Path) -> list[dict[str, Any]]:
    """Return the decoder's inputs for each chunk of the calibration text, in batches of one."""
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
        # awq pins its cache for an accelerator, even if there is none
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
    made.add_argument("source", type=Path, help="folder of the checkpoint")
    made.add_argument("target", type=Path, help="folder to create")
    made.add_argument("--method", choices=METHODS, required=True)
    made.add_argument(
        "--calibration", type=Path, required=True, help="npz file with calibration text"
    )
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
