"""Casts a decoder's weights to bfloat16 in safetensors, which vLLM loads.

Reads a checkpoint in the format of transformers, and writes a folder. Needs torch and transformers.
"""

from argparse import ArgumentParser
from pathlib import Path

from .beside import copy_tokenizer


def main() -> None:
    """Convert one folder."""
    made = ArgumentParser(description=__doc__)
    made.add_argument("source", type=Path, help="folder of the checkpoint")
    made.add_argument("target", type=Path, help="folder to create")
    given = made.parse_args()
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(
        given.source, dtype=torch.bfloat16, local_files_only=True, trust_remote_code=False
    )
    model.save_pretrained(given.target)
    copy_tokenizer(given.source, given.target)


if __name__ == "__main__":
    main()
