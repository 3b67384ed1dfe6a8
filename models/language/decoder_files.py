"""A trained decoder as the folder that everything downstream reads."""

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from millrace.models.common.errors import WorkError
from millrace.models.common.language_generation import ids_of
from millrace.models.common.quiet import quiet_transformers
from millrace.models.language.lora import merged
from millrace.models.language.recipe import DecoderSpec

if TYPE_CHECKING:
    from transformers import PreTrainedModel

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)


def save_decoder(
    folder: Path, decoder: "PreTrainedModel", spec: DecoderSpec, tokenizer: Path | None
) -> None:
    """Write `config.json`, `generation_config.json`, `model.safetensors` and the tokenizer's files.

    With LoRA the weights are the merged ones, and the adapter is kept in `adapter/`; the decoder
    that was given has lost it.

    Args:
        folder: where to write; made if need be.
        decoder: on the CPU, whole.
        spec: what it was made of.
        tokenizer: folder of the tokenizer's files; None for none.

    Raises:
        WorkError: the tokenizer's folder has no tokenizer.json.
    """
    folder.mkdir(parents=True, exist_ok=True)
    whole = decoder if spec.lora is None else merged(decoder, folder)
    _set_special_tokens(whole, spec, tokenizer)
    with quiet_transformers():
        # One file: what is read downstream knows no index of several.
        whole.save_pretrained(folder, max_shard_size="1TB")
    if tokenizer is not None:
        _copy_tokenizer(tokenizer, folder)


def _set_special_tokens(
    decoder: "PreTrainedModel", spec: DecoderSpec, tokenizer: Path | None
) -> None:
    """Let generation end where the tokenizer's documents and turns end.

    And at the tokens that a pretrained decoder ended at before, if the tokenizer has them as such.
    """
    before = _ends_before(decoder, tokenizer)
    for holder in (decoder.config, decoder.generation_config):
        for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
            value = getattr(spec, name)
            if holder is not None and value is not None:
                setattr(holder, name, value)
    if decoder.generation_config is not None and spec.eos_token_id is not None:
        ends = [*dict.fromkeys((spec.eos_token_id, *spec.turn_end_ids, *before))]
        decoder.generation_config.eos_token_id = ends if len(ends) > 1 else ends[0]


def _ends_before(decoder: "PreTrainedModel", tokenizer: Path | None) -> list[int]:
    """Return the tokens that end an answer by a decoder's own files, and are the tokenizer's."""
    config = decoder.generation_config
    if tokenizer is None or config is None or not (tokenizer / TOKENIZER_FILES[0]).is_file():
        return []
    added = json.loads((tokenizer / TOKENIZER_FILES[0]).read_text()).get("added_tokens", ())
    known = {each["id"] for each in added if each["special"]}
    return sorted(ids_of(config.eos_token_id) & known)


def _copy_tokenizer(source: Path, folder: Path) -> None:
    if not (source / TOKENIZER_FILES[0]).is_file():
        raise WorkError(
            "the tokenizer of the decoder is gone",
            seen=source,
            valid="a folder with tokenizer.json",
            hint="run again; do not delete files of a run while it trains",
        )
    for name in TOKENIZER_FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / name)
