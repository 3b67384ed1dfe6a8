"""The tokenizer's files, which a variant copies from the checkpoint."""

import shutil
from pathlib import Path

TOKENIZER = (
    *("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"),
    *("special_tokens_map.json", "added_tokens.json"),
)


def copy_tokenizer(source: Path, target: Path) -> None:
    """Copy the tokenizer's files that exist in `source`."""
    for name in TOKENIZER:
        if (file := source / name).is_file():
            shutil.copyfile(file, target / name)
