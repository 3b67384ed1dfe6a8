"""Finds pretrained models, and loads or trains the tokenizer of a text."""

import re
from collections.abc import Iterable
from pathlib import Path

from millrace.models.common.errors import InputError
from millrace.models.config.training_spec import ModelSpec
from millrace.models.inference.tokenizer import TextTokenizer, train_tokenizer

HUB_NAME = re.compile(r"(\w[\w.-]*/)?\w[\w.-]*")


def resolve_pretrained(name: str, folder: Path) -> str:
    """Return the path of a folder beside the pipeline file, or a Hugging Face hub name unchanged.

    Args:
        name: name of a folder or of a model on the hub, from the pipeline file.
        folder: folder of the pipeline file.

    Raises:
        InputError: the name is neither a folder nor a valid name on the hub.
    """
    path = folder / Path(name).expanduser()
    if path.is_dir():
        return str(path.resolve())
    if not HUB_NAME.fullmatch(name):
        raise InputError(
            f"there is no folder {path.resolve() if folder.is_absolute() else path}",
            seen=name,
            valid="a folder beside the pipeline file, or a name on the Hugging Face hub",
            hint="check model.pretrained and model.tokenizer.source",
        )
    return name


def pin_revision(spec: ModelSpec, folder: Path) -> ModelSpec:
    """Return the model with the hub's newest commit, if it is on the hub and has no revision.

    With the commit pinned, all workers read the same files, and the version records the commit.

    Raises:
        InputError: the hub does not know the model, or cannot be reached.
    """
    name = spec.pretrained
    if name is None or spec.revision is not None or resolve_pretrained(name, folder) != name:
        return spec
    from huggingface_hub import HfApi

    try:
        revision = HfApi().model_info(name).sha
    except Exception as error:  # the network may fail in any way
        raise unreadable(f"model.pretrained {name!r}", error) from error
    return spec.model_copy(update={"revision": revision})


def unreadable(what: str, error: Exception) -> InputError:
    """Return the error of a pretrained model, or a file of it, that cannot be read."""
    return InputError(
        f"{what} cannot be read",
        seen=(str(error) or type(error).__name__).splitlines()[0],
        valid="a folder beside the pipeline file, or a name on the Hugging Face hub",
        hint="check the path; for a name on the hub, check the network",
    )


def load_tokenizer(spec: ModelSpec, folder: Path, texts: Iterable[str]) -> TextTokenizer:
    """Load the tokenizer of the pipeline or of the pretrained model, or train one.

    Args:
        spec: the pipeline file's `model` part.
        folder: folder of the pipeline file.
        texts: texts of the train split; read only to train a tokenizer.

    Raises:
        InputError: the tokenizer does not exist, or has no padding token.
    """
    settings, source = spec.tokenizer, spec.tokenizer.source or spec.pretrained
    if source is None:
        return train_tokenizer(texts, settings.vocab_size, settings.max_tokens)
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(
            resolve_pretrained(source, folder),
            # The revision is a commit of the model's repository, not of the tokenizer's.
            revision=spec.revision if source == spec.pretrained else None,
            trust_remote_code=False,
        )
        backend = tokenizer.backend_tokenizer
    except Exception as error:  # tokenizers raises Exception itself for a bad file
        raise InputError(
            f"the tokenizer {source!r} cannot be read",
            seen=(str(error) or type(error).__name__).splitlines()[0],
            valid="a folder beside the pipeline file, or a name on the Hugging Face hub, with "
            "tokenizer.json",
            hint="check model.tokenizer.source and model.pretrained",
        ) from error
    if tokenizer.pad_token_id is None:
        raise InputError(
            f"the tokenizer {source!r} has no padding token",
            seen="pad_token: none",
            valid="a tokenizer with a pad_token",
            hint="set pad_token in its tokenizer_config.json",
        )
    return TextTokenizer.of(backend, settings.max_tokens, tokenizer.pad_token_id)
