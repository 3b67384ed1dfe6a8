"""A decoder's weights in bfloat16, as safetensors: what vLLM opens.

Reads a checkpoint as transformers writes it, and writes a folder. Needs torch and transformers.
"""

from argparse import ArgumentParser
from pathlib import Path

from .beside import copy_tokenizer


def main() -> None:
    """Convert one folder."""
    made = ArgumentParser(description=__doc__)
    made.add_argument("source", type=Path, help="the checkpoint, a folder")
    made.add_argument("target", type=Path, help="where to write, a new folder")
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
