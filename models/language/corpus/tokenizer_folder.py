"""The tokenizer of a language model: the files that transformers saves, kept in memory.

The tokenizer is read from a folder or the Hugging Face hub, or is a byte-level BPE trained on the
train split. It is identified by a digest of its files, so equal files are one tokenizer, wherever
they came from.
"""

import json
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millrace.models.common.errors import InputError
from millrace.models.families.pretrained import resolve_pretrained

if TYPE_CHECKING:
    from tokenizers import Tokenizer

END, PAD, TURN = "<|endoftext|>", "<|pad|>", "<|im_start|>"
CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + eos_token + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""The chat template for a tokenizer without one: ChatML, but a turn ends with the tokenizer's own
`eos_token`, so that generation stops there and the vocabulary does not have to grow."""

WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Pre-tokenization pattern, of Qwen2 (Yang et al. 2024): every digit is a word of its own. It is
one pattern, because OpenVINO's tokenizer splits differently after two patterns in a row."""

_CONFIG, _TEMPLATE = "tokenizer_config.json", "chat_template.jinja"
_SAID = "millrace"
_LONG = re.compile(r"(\S{256})\S+|(\s{256})\s+")
"""A word too long to train the tokenizer on: base64, a table of numbers, padding."""
_OF_THE_MACHINE = ("is_local", "local_files_only", "name_or_path")
"""Keys of `tokenizer_config.json` that only say where the tokenizer was read from."""


@dataclass(frozen=True)
class LanguageTokenizer:
    """The files of a tokenizer.

    Attributes:
        files: contents by file name: `tokenizer.json`, `tokenizer_config.json`, and
            `chat_template.jinja` if the tokenizer has a chat template.
    """

    files: Mapping[str, bytes]

    @property
    def digest(self) -> str:
        """SHA-256 of the file names and contents, in hexadecimal."""
        parts = (f"{n} {sha256(self.files[n]).hexdigest()}\n" for n in sorted(self.files))
        return sha256("".join(parts).encode()).hexdigest()

    def write(self, folder: Path) -> None:
        """Write the files into a folder, which is created if it does not exist."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, contents in self.files.items():
            (folder / name).write_bytes(contents)

    @property
    def fast(self) -> Any:
        """The transformers tokenizer, cached by file contents in this process.

        Use it for chats only, because importing transformers takes seconds; else use `plain`.
        """
        return _open_tokenizer(tuple(sorted(self.files.items())))

    @property
    def plain(self) -> "Tokenizer":
        """The tokenizer of the library `tokenizers`.

        A special token that is spelled out in a text is tokenized as ordinary text.
        """
        return _plain(tuple(sorted(self.files.items())))

    @property
    def vocab_size(self) -> int:
        """One more than the largest token id: the number of rows that an embedding needs."""
        return max(self.plain.get_vocab(with_added_tokens=True).values()) + 1

    @property
    def end(self) -> int:
        """The id of the token that ends a document."""
        return self._special("eos_token")

    @property
    def padding(self) -> int:
        """The id of the padding token."""
        return self._special("pad_token")

    @property
    def turn_ends(self) -> tuple[int, ...]:
        """A tuple with the id of the token that ends an assistant's turn; empty if the id is `end`.

        The tuple is also empty if the id is not known. Qwen's and Llama's base tokenizers end a
        document and a turn with different tokens.
        """
        fast = self.fast if self._has_template else None
        if fast is None or not fast.chat_template:
            return ()
        chat = [{"role": "user", "content": "?"}, {"role": "assistant", "content": _SAID}]
        try:
            whole = str(fast.apply_chat_template(chat, tokenize=False))
        except Exception:  # a template may refuse any chat: then no token that ends a turn is known
            return ()
        behind = fast.backend_tokenizer.encode(
            whole.rpartition(_SAID)[2].lstrip(), add_special_tokens=False
        ).ids
        first = behind[0] if behind else self.end
        return (int(first),) if first != self.end and first in fast.added_tokens_decoder else ()

    @property
    def _has_template(self) -> bool:
        return _TEMPLATE in self.files or "chat_template" in json.loads(self.files[_CONFIG])

    def _special(self, name: str) -> int:
        token = json.loads(self.files[_CONFIG])[name]
        found = self.plain.token_to_id(token["content"] if isinstance(token, dict) else token)
        if found is None:
            raise InputError(
                f"the {name} of the tokenizer is not in its vocabulary",
                seen=token,
                hint=f"fix {name} in the tokenizer's {_CONFIG}",
            )
        return int(found)


def read_tokenizer(
    source: str, folder: Path, revision: str | None = None, *, chat: bool = False
) -> LanguageTokenizer:
    """Read a tokenizer from a folder or from the Hugging Face hub.

    A tokenizer without a padding token pads with its `eos_token`.

    Args:
        source: a folder beside the pipeline file, or a name on the Hugging Face hub.
        folder: the folder of the pipeline file.
        revision: commit of the repository on the hub.
        chat: whether the dataset has messages; a tokenizer without a template then gets `CHATML`.

    Raises:
        InputError: there is no such tokenizer, or it has no `tokenizer.json` or no `eos_token`.
    """
    from transformers import AutoTokenizer

    try:
        read = AutoTokenizer.from_pretrained(
            resolve_pretrained(source, folder), revision=revision, trust_remote_code=False
        )
        read.backend_tokenizer.no_truncation()
        read.backend_tokenizer.no_padding()
    except InputError:
        raise
    except Exception as error:  # transformers may raise anything on a damaged file
        raise InputError(
            f"the tokenizer {source!r} cannot be read",
            seen=(str(error) or type(error).__name__).splitlines()[0],
            valid="a folder beside the pipeline file, or a name on the Hugging Face hub, with "
            "tokenizer.json",
            hint="check model.tokenizer.source and model.pretrained",
        ) from error
    if read.eos_token_id is None:
        raise InputError(
            f"the tokenizer {source!r} has no token that ends a text",
            seen="eos_token: none",
            valid="a tokenizer with an eos_token",
            hint="set eos_token in its tokenizer_config.json",
        )
    if read.pad_token_id is None:
        read.pad_token = read.eos_token
    if chat and not read.chat_template:
        read.chat_template = CHATML
    return _saved(read)


def learn_tokenizer(
    texts: Iterable[str], vocab_size: int, *, chat: bool = False
) -> LanguageTokenizer:
    """Train a byte-level BPE tokenizer: no string is unknown, and each digit is one token.

    Sennrich, Haddow and Birch 2016; bytes as in Radford et al. 2019; digits as in Chowdhery et al.
    2022 (PaLM). The same texts give the same tokenizer.

    Args:
        texts: texts of the train split; words are cut to their first 256 characters.
        vocab_size: largest number of tokens, special ones included; short texts give fewer.
        chat: whether the dataset has messages; adds the token that begins a turn, and `CHATML`.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END, PAD, *([TURN] if chat else [])],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(_learnable(texts), trainer)
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END, "pad_token": PAD}
    files = {"tokenizer.json": made.to_str(pretty=True).encode(), _CONFIG: _json(config)}
    return LanguageTokenizer({**files, _TEMPLATE: CHATML.encode()} if chat else files)


def _learnable(texts: Iterable[str]) -> Iterator[str]:
    return (_LONG.sub(r"\1\2", text) for text in texts)


def _saved(fast: Any) -> LanguageTokenizer:
    with tempfile.TemporaryDirectory() as name:
        fast.save_pretrained(name)
        files = {file.name: file.read_bytes() for file in Path(name).iterdir() if file.is_file()}
    config = json.loads(files[_CONFIG])
    kept = {key: value for key, value in config.items() if key not in _OF_THE_MACHINE}
    return LanguageTokenizer({**files, _CONFIG: _json(kept)})


def _json(values: Mapping[str, Any]) -> bytes:
    return json.dumps(values, indent=2, sort_keys=True, ensure_ascii=False).encode()


@lru_cache(maxsize=4)
def _open_tokenizer(files: tuple[tuple[str, bytes], ...]) -> Any:
    from transformers import AutoTokenizer

    with tempfile.TemporaryDirectory() as name:
        LanguageTokenizer(dict(files)).write(Path(name))
        return AutoTokenizer.from_pretrained(name, trust_remote_code=False)


@lru_cache(maxsize=4)
def _plain(files: tuple[tuple[str, bytes], ...]) -> "Tokenizer":
    from tokenizers import Tokenizer

    made = Tokenizer.from_str(dict(files)["tokenizer.json"].decode())
    made.encode_special_tokens = True
    return made
