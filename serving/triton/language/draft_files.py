"""The draft model of speculative decoding: its staged files, and whether it fits a language model.

A smaller model, the draft, proposes tokens, and the language model accepts or rejects them
(Leviathan, Kalman and Matias 2023). Every token of an answer is one that the language model itself
chose. So the draft changes how long an answer takes, but not the text of greedy answers.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from millrace.models.common.bounded_files import bounded_json, bounded_text
from millrace.models.common.digest import digest_of
from millrace.models.common.errors import InputError
from millrace.models.inference.language_engine import EngineName, engine_of
from millrace.serving.triton.version_folder import Draft

IR, TOKENIZER, CONFIG = "openvino_model.xml", "tokenizer.json", "config.json"
CONTEXT = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length")
"""Keys of the context length in the `config.json` of different architectures."""


@dataclass(frozen=True)
class Tokens:
    """The properties that a model and its draft must share.

    Attributes:
        tokenizer: SHA-256 of `tokenizer.json`, in hexadecimal.
        vocab_size: the vocabulary size; None if not known yet.
        context: the largest number of tokens of prompt and answer together; None if not known.
        engine: the engine that runs the model; None if not known yet.
    """

    tokenizer: str
    vocab_size: int | None = None
    context: int | None = None
    engine: EngineName | None = None


def tokens_of(files: Mapping[str, Path], whose: str) -> Tokens:
    """Return the tokenizer digest, vocabulary size, context and engine of a variant.

    Args:
        files: the files of an exported variant of a language model, by name.
        whose: the name of the model in error messages.

    Raises:
        InputError: the variant is for neither OpenVINO nor vLLM, or cannot be read.
    """
    engine = engine_of(files)
    needed = (*([IR] if engine == "openvino_genai" else []), TOKENIZER, CONFIG)
    if missing := [name for name in needed if name not in files]:
        raise InputError(
            f"{whose} has no variant that can be served",
            seen=f"no {missing[0]}",
            valid="a version with a registered openvino or vllm variant",
            hint="name such a version in serving.generation.draft",
        )
    try:
        config = bounded_json(bounded_text(files[CONFIG]))
        size = config.get("vocab_size")
        context = next((int(config[name]) for name in CONTEXT if config.get(name)), None)
    except (ValueError, TypeError, AttributeError) as error:
        raise InputError(
            f"{CONFIG} of {whose} cannot be read", seen=error, hint="register the model again"
        ) from error
    return Tokens(digest_of(files[TOKENIZER]), size, context, engine)


def require_fit(model: Tokens, draft: Draft) -> None:
    """Raise InputError unless a draft model fits the model.

    Both must have the same engine, tokenizer and vocabulary size, and the draft's context must be
    at least as long as the model's. Unknown properties of the model are not compared.
    """
    own = tokens_of(draft.files, draft.name)
    if model.engine not in (None, own.engine):
        raise _mismatch(draft, "its engine differs from the model's", own.engine, model.engine)
    if own.tokenizer != model.tokenizer:
        raise _mismatch(
            draft, "its tokenizer differs from the model's", own.tokenizer, model.tokenizer
        )
    if None not in (own.vocab_size, model.vocab_size) and own.vocab_size != model.vocab_size:
        raise _mismatch(
            draft, "its vocabulary size differs from the model's", own.vocab_size, model.vocab_size
        )
    if own.context is not None and own.context < (model.context or 0):
        least = f"at least {model.context}"
        raise _mismatch(draft, "its context is shorter than the model's", own.context, least)


def _mismatch(draft: Draft, why: str, seen: object, valid: object) -> InputError:
    return InputError(
        f"{draft.name} cannot draft for this model: {why}",
        seen=seen,
        valid=valid,
        hint="train a draft with the model's tokenizer and context, name the draft in "
        "serving.generation.draft, and register the model again",
    )
