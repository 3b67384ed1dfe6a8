"""The smaller model that drafts tokens for a language model to check: what is staged of it.

Speculative decoding (Leviathan, Kalman and Matias 2023): every token of an answer is one that the
model itself chose, so a draft changes how long an answer takes, and of greedy ones nothing else.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from millrace.models.common.bounded_files import bounded_json, bounded_text
from millrace.models.common.digest import digest_of
from millrace.models.common.errors import InputError
from millrace.models.inference.language_engine import EngineName, engine_of

DRAFT = "draft"
"""Its folder, beside the model's files."""
IR, TOKENIZER, CONFIG = "openvino_model.xml", "tokenizer.json", "config.json"
CONTEXT = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length")
"""The names that architectures have for the longest sequence."""


@dataclass(frozen=True)
class Draft:
    """A registered version that drafts for another one.

    Attributes:
        name: which version, NAME/VERSION.
        files: its files, by the names that they have in the folder `draft`.
        sha256: the digest that the registry holds for them, see `digest_of_model`.
    """

    name: str
    files: Mapping[str, Path]
    sha256: str

    def __str__(self) -> str:
        """Return which version it is, and of which files."""
        return f"{self.name}, sha256 {self.sha256[:16]}"


@dataclass(frozen=True)
class Tokens:
    """What a model and its draft must have in common.

    Attributes:
        tokenizer: SHA-256 of `tokenizer.json`, in hexadecimal.
        vocab_size: tokens that are chosen from; None if that is not known yet.
        context: tokens of prompt and answer together; None if that is not known.
        engine: that opens both; None if that is not known yet.
    """

    tokenizer: str
    vocab_size: int | None = None
    context: int | None = None
    engine: EngineName | None = None


def tokens_of(files: Mapping[str, Path], whose: str) -> Tokens:
    """Read what tokens a form of a language model reads and writes.

    Args:
        files: of the form, by name.
        whose: the model, in words.

    Raises:
        InputError: it is no form of OpenVINO's or vLLM's, or it cannot be read.
    """
    engine = engine_of(files)
    needed = (*([IR] if engine == "openvino_genai" else []), TOKENIZER, CONFIG)
    if missing := [name for name in needed if name not in files]:
        raise InputError(
            f"{whose} is in no form that is served",
            seen=f"no {missing[0]}",
            valid="a version of which an openvino or a vllm form was registered",
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
    """Raise InputError unless a draft's tokens are the model's own, and its context as long.

    What is not known of the model is not compared.
    """
    own = tokens_of(draft.files, draft.name)
    if model.engine not in (None, own.engine):
        raise _misfit(draft, "its form is for another engine", own.engine, model.engine)
    if own.tokenizer != model.tokenizer:
        raise _misfit(draft, "its tokenizer is another one", own.tokenizer, model.tokenizer)
    if None not in (own.vocab_size, model.vocab_size) and own.vocab_size != model.vocab_size:
        raise _misfit(draft, "its vocabulary is of another size", own.vocab_size, model.vocab_size)
    if own.context is not None and own.context < (model.context or 0):
        least = f"at least {model.context}"
        raise _misfit(draft, "its context is shorter than the model's", own.context, least)


def _misfit(draft: Draft, why: str, seen: object, valid: object) -> InputError:
    return InputError(
        f"{draft.name} cannot draft for this model: {why}",
        seen=seen,
        valid=valid,
        hint="train a draft with the same tokenizer and as long a context, name it in "
        "serving.generation.draft, and register the model again",
    )
