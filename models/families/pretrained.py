"""Where a pretrained model or a tokenizer is, and the tokenizer that a text is learnt with."""

import re
from collections.abc import Iterable
from pathlib import Path

from millrace.models.common.errors import InputError
from millrace.models.config.training_spec import ModelSpec
from millrace.models.inference.tokenizer import TextTokenizer, learnt

HUB_NAME = re.compile(r"(\w[\w.-]*/)?\w[\w.-]*")


def located(name: str, folder: Path) -> str:
    """Return a folder beside the pipeline file as its path; another name as it is, the hub's.

    Args:
        name: as the pipeline file has it.
        folder: of that file.

    Raises:
        InputError: it is no folder, and nothing that the hub could have.
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


def pinned(spec: ModelSpec, folder: Path) -> ModelSpec:
    """Return the model with the hub's newest commit, where it is the hub's and names none.

    So all workers read the same files, and the version keeps which they were.

    Raises:
        InputError: the hub does not know the model, or cannot be reached.
    """
    name = spec.pretrained
    if name is None or spec.revision is not None or located(name, folder) != name:
        return spec
    from huggingface_hub import HfApi

    try:
        revision = HfApi().model_info(name).sha
    except Exception as error:  # whatever the network does
        raise InputError(
            f"model.pretrained {name!r} cannot be read",
            seen=(str(error) or type(error).__name__).splitlines()[0],
            valid="a folder beside the pipeline file, or a name on the Hugging Face hub",
            hint="check the path, or the network for a name on the hub",
        ) from error
    return spec.model_copy(update={"revision": revision})


def tokenizer_of(spec: ModelSpec, folder: Path, texts: Iterable[str]) -> TextTokenizer:
    """Return the tokenizer that the pipeline names, the pretrained model's, or one that is learnt.

    Args:
        spec: the pipeline's model.
        folder: of the pipeline file.
        texts: of the train split; read only where a tokenizer is learnt.

    Raises:
        InputError: there is no such tokenizer, or it cannot fill batches up.
    """
    wanted, source = spec.tokenizer, spec.tokenizer.source or spec.pretrained
    if source is None:
        return learnt(texts, wanted.vocab_size, wanted.max_tokens)
    from transformers import AutoTokenizer

    try:
        read = AutoTokenizer.from_pretrained(
            located(source, folder),
            # a commit of the model's repository is none of another one's
            revision=spec.revision if source == spec.pretrained else None,
            trust_remote_code=False,
        )
        backend = read.backend_tokenizer
    except Exception as error:  # whatever tokenizers makes of a file
        raise InputError(
            f"the tokenizer {source!r} cannot be read",
            seen=(str(error) or type(error).__name__).splitlines()[0],
            valid="a folder beside the pipeline file, or a name on the Hugging Face hub, with "
            "tokenizer.json",
            hint="check model.tokenizer.source and model.pretrained",
        ) from error
    if read.pad_token_id is None:
        raise InputError(
            f"the tokenizer {source!r} has no token that fills a batch up",
            seen="pad_token: none",
            valid="a tokenizer with a pad_token",
            hint="set pad_token in its tokenizer_config.json",
        )
    return TextTokenizer.of(backend, wanted.max_tokens, read.pad_token_id)
