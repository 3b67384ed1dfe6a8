"""Exports a decoder to OpenVINO without quantization.

Run as `python -m millrace.export.openvino.from_checkpoint FROM TO`.

FROM is a checkpoint folder in the format of transformers. TO gets the decoder in float32, and the
tokenizer and detokenizer as OpenVINO models.
"""

import json
import sys
from pathlib import Path
from typing import Any

from millrace.export.language.conversions.beside import copy_tokenizer
from millrace.export.language.engine_speed import EXACT
from millrace.export.language.variant_folder import (
    CONFIG,
    DETOKENIZER,
    GENERATION,
    IR,
    TOKENIZER,
    VariantFolder,
)
from millrace.export.openvino.decoder_ir import to_ir
from millrace.models.common.errors import InputError
from millrace.models.common.quiet import disable_openvino_telemetry, quiet
from millrace.models.inference.language_engine import ENGINE


def write_exact_variant(checkpoint: Path, target: Path) -> VariantFolder:
    """Write the float32 variant of a checkpoint.

    Args:
        checkpoint: folder of the model and its tokenizer.
        target: folder to create.

    Raises:
        InputError: the decoder or its tokenizer cannot be served, or the folder lacks a file.
    """
    disable_openvino_telemetry()
    import openvino
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with quiet("transformers"):
        model = AutoModelForCausalLM.from_pretrained(
            checkpoint, dtype=torch.float32, local_files_only=True, trust_remote_code=False
        )
    ir = to_ir(model)
    words = AutoTokenizer.from_pretrained(
        checkpoint, local_files_only=True, trust_remote_code=False
    )
    tokenizer, detokenizer = tokenizer_graphs(words)
    target.mkdir(parents=True)
    openvino.save_model(ir, target / f"{IR}.xml", compress_to_fp16=False)
    openvino.save_model(tokenizer, target / f"{TOKENIZER}.xml")
    openvino.save_model(detokenizer, target / f"{DETOKENIZER}.xml")
    model.config.to_json_file(target / CONFIG)
    model.generation_config.to_json_file(target / GENERATION)
    (target / ENGINE).write_text(json.dumps(dict(EXACT)))
    copy_tokenizer(checkpoint, target)
    return VariantFolder.read(target)


def tokenizer_graphs(tokenizer: Any) -> tuple[Any, Any]:
    """Convert a transformers tokenizer to two OpenVINO models: the tokenizer and the detokenizer.

    Raises:
        InputError: the tokenizer cannot be converted.
    """
    disable_openvino_telemetry()
    from openvino_tokenizers import convert_tokenizer

    try:
        # the served text has no special tokens
        there, back = convert_tokenizer(tokenizer, with_detokenizer=True, skip_special_tokens=True)
    except Exception as error:  # the converter may raise anything on an unknown tokenizer
        raise InputError(
            "the tokenizer cannot be served, because openvino_tokenizers cannot convert it",
            seen=(str(error) or type(error).__name__).splitlines()[0],
            valid="a tokenizer.json of byte-level BPE, SentencePiece or WordPiece",
        ) from error
    return there, back


def main() -> None:
    """Export one checkpoint."""
    checkpoint, target = map(Path, sys.argv[1:])
    write_exact_variant(checkpoint, target)


if __name__ == "__main__":
    main()
