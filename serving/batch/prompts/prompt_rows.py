"""What all jobs of prompts share: how prompts are read, sampled and refused, and the output."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc

from millrace.models.common.errors import WorkError
from millrace.models.common.language_generation import MAX_TOKENS, ChatTemplate, TemplateRefusal
from millrace.models.data.coerce import Cast, cast
from millrace.models.data.messages import Message, is_list_of_structs, parse_messages
from millrace.models.data.row_checks import as_json
from millrace.models.data.schema import KEY, Column
from millrace.models.data.split import hash_keys, hash_rows
from millrace.models.inference.features import TEXT
from millrace.serving.batch.input.input_pieces import cells_of, declared_keys
from millrace.serving.batch.job import DEAD, ERROR, ROW, TOKENS_IN, TOKENS_OUT
from millrace.serving.batch.monitoring.drift import Bins
from millrace.serving.triton.language.draft_files import CONTEXT


@dataclass(frozen=True)
class Sampling:
    """How tokens are sampled, and when an answer ends; the names are vLLM's.

    Attributes:
        max_tokens: largest number of tokens of an answer; fewer if the context has no room.
        temperature: 0 always takes the likeliest token.
        top_p: keep the likeliest tokens whose probabilities sum up to this.
        top_k: keep this many of the likeliest tokens; None: keep all.
        repetition_penalty: above 1 makes tokens of prompt and answer less likely.
        seed: random seed; a row's answer depends on it and on the row's place in the input.
        stop: texts that end an answer, and are not part of it.
    """

    max_tokens: int = MAX_TOKENS
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int | None = None
    repetition_penalty: float = 1.0
    seed: int = 0
    stop: tuple[str, ...] = ()

    def ended(self, text: str) -> str | None:
        """Return an answer up to its first stop text; None if it has no stop text."""
        ends = [at for stop in self.stop if (at := text.find(stop)) >= 0]
        return text[: min(ends)] if ends else None


PROMPT = "prompt"
"""Column with the prompt in the encoded rows, whatever the column's name in the input. For a chat,
the text that the chat template makes of the messages."""
IS_CHAT = "is_chat"
"""Column of the encoded rows: whether the prompt is a chat."""
CHARACTERS = 64
"""Largest number of characters in a prompt per token of the context; a longer prompt is refused."""
SEED_STEP = 0x9E3779B1
SEED_SPACE = 2**32
OUTPUT = pa.schema(
    [
        (KEY, pa.string()),
        ("completion", pa.string()),
        ("finish_reason", pa.string()),
        (TOKENS_IN, pa.int32()),
        (TOKENS_OUT, pa.int32()),
        ("model_version", pa.int32()),
        (ROW, pa.int64()),
    ]
)


@dataclass(frozen=True)
class Prompts:
    """The part of a batch job of prompts that does not depend on the engine.

    Attributes:
        model: the registered model.
        version: the version that answers.
        digest: digest of the version's files.
        variant: the folder of the version's files, on the node of the driver.
        prompt: the column with the prompts.
        sampling: how answers are sampled.
        key: columns that identify a row; if empty, a hash of the prompt is the key.
        dataset_columns: the columns of the dataset; empty if the dataset is not known.
        output_bins: drift bins of the lengths of prompts and answers, in tokens.
        template: the model's chat template; None if it has none.
    """

    model: str
    version: int
    digest: str
    variant: Path
    prompt: str = PROMPT
    sampling: Sampling = Sampling()
    key: tuple[str, ...] = ()
    dataset_columns: tuple[Column, ...] = ()
    output_bins: tuple[Bins, ...] = ()
    template: ChatTemplate | None = None

    @property
    def bins(self) -> tuple[Bins, ...]:
        """Empty: the drift of prompts is the drift of their lengths, a column of the output."""
        return ()

    @property
    def needed(self) -> tuple[str, ...]:
        """The column with the prompts."""
        return (self.prompt,)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the input that the job reads, as far as they exist."""
        return tuple(dict.fromkeys((KEY, *self.key, self.prompt)))

    @property
    def advice(self) -> str:
        """Hint of the error about an input without the needed columns."""
        return (
            "set batch.prompt to the column of the prompts, batch.key to the columns that identify "
            "a row, and --input to the rows"
        )

    @property
    def output(self) -> pa.Schema:
        """The columns of the output."""
        return OUTPUT

    @property
    def folder(self) -> Path:
        """The folder of the model's files."""
        return self.variant

    @property
    def files(self) -> tuple[Path, ...]:
        """The model's files."""
        return tuple(file for file in sorted(self.variant.iterdir()) if file.is_file())

    def moved(self, folder: Path) -> Self:
        """Return the same job with its files in another folder."""
        return replace(self, variant=folder)

    def parameters(self) -> Mapping[str, Any]:
        """Return the settings besides model and key that change the answers."""
        columns = [asdict(column) for column in self.dataset_columns]
        return {"prompt": self.prompt, "sampling": asdict(self.sampling), "held": columns}

    def encoded(self, rows: pa.RecordBatch | pa.Table) -> pa.Table:
        """Return `_key`, `prompt`, `is_chat` and `error` for every row.

        A row without text has an error. A column of messages is a column of prompts too: the
        model's chat template formats them, as for a client who sends messages.
        """
        read = self._read(rows)
        texts = read.values
        unreadable, is_null = pa.array(read.unparsable), texts.is_null()
        is_empty = pc.fill_null(pc.equal(pc.utf8_trim_whitespace(texts), ""), fill_value=False)
        is_chat = self.has_messages(rows)
        kind = "a list of messages" if is_chat else "text"
        errors = pc.case_when(
            pc.make_struct(unreadable, is_null, is_empty),
            *(f"{self.prompt} {fault}" for fault in (f"is not {kind}", "is missing", "is empty")),
        )
        keys = declared_keys(rows, self.key, self.dataset_columns)
        if keys is None:
            keys = hash_keys(hash_rows(pa.record_batch({TEXT: texts})))
        prompts = texts
        if is_chat:
            prompts, refusals = self._render_chats(texts)
            errors = pc.coalesce(errors.cast(pa.string()), refusals)
        marks = pa.repeat(pa.scalar(is_chat), len(texts))
        columns = {KEY: keys, PROMPT: prompts, IS_CHAT: marks}
        return pa.table({**columns, ERROR: errors.cast(pa.string())})

    def has_messages(self, rows: pa.RecordBatch | pa.Table) -> bool:
        """Return whether the prompts of an input are chats."""
        declared = next(
            (each.type for each in self.dataset_columns if each.name == self.prompt), None
        )
        return declared == "messages" or is_list_of_structs(cells_of(rows, self.prompt).type)

    def read_prompt(self, row: pa.RecordBatch) -> str | list[Message]:
        """Return what a client would send for one row: a text, or the messages of a chat."""
        (text,) = self._read(row).values.to_pylist()
        return parse_messages(text) if self.has_messages(row) else str(text)

    def _read(self, rows: pa.RecordBatch | pa.Table) -> Cast:
        """Return the cells of the prompts as text; chats are canonical JSON."""
        cells = cells_of(rows, self.prompt)
        is_chat = self.has_messages(rows)
        return cast(cells, Column(self.prompt, "messages" if is_chat else "string"))

    def _render_chats(self, chats: pa.Array) -> tuple[pa.Array, pa.Array]:
        """Return the prompts of chats, and the reasons why chats are refused.

        A refused chat has null as its prompt; any other chat has null as its reason.
        """
        prompts: list[str | None] = []
        refusals: list[str | None] = []
        for chat in chats.to_pylist():
            prompt, refusal = (
                (None, None) if chat is None else self._render_chat(parse_messages(chat))
            )
            prompts.append(prompt)
            refusals.append(refusal)
        return pa.array(prompts, pa.string()), pa.array(refusals, pa.string())

    def _render_chat(self, messages: list[Message]) -> tuple[str | None, str | None]:
        if self.template is None:
            return None, "the model has no chat template, and the prompt is a chat"
        try:
            return (
                (self.template.prompt(messages), None)
                if messages
                else (None, "the chat has no message")
            )
        except TemplateRefusal as error:
            words = f": {error}" if str(error) else ""
            return None, f"the model's chat template refuses the messages{words}"

    def compared(
        self, rows: pa.RecordBatch | pa.Table, encoded: pa.Table
    ) -> pa.RecordBatch | pa.Table:
        """Return the rows as they are, because `bins` is empty."""
        del encoded
        return rows

    def seed_of(self, row: int) -> int:
        """Return the random seed of a row's answer.

        Args:
            row: place of the row in the input.
        """
        return (self.sampling.seed + row * SEED_STEP) % SEED_SPACE


def chats_among(rows: pa.Table) -> list[bool]:
    """Return for each of the encoded rows whether its prompt is a chat."""
    marked = IS_CHAT in rows.column_names
    return rows[IS_CHAT].to_pylist() if marked else [False] * len(rows)


def context_of(variant: Path) -> int:
    """Return the model's context: the largest number of tokens of prompt and answer together.

    Raises:
        WorkError: the model's config does not give the context.
    """
    config = json.loads((variant / "config.json").read_text())
    found = next((int(config[name]) for name in CONTEXT if config.get(name)), None)
    if found is None:
        raise WorkError(
            f"{variant / 'config.json'} does not give the model's context length",
            valid=f"one of the keys {', '.join(CONTEXT)}",
            hint="add one of these keys to config.json, and register the model again",
        )
    return found


def is_readable(text: str, context: int) -> bool:
    """Return whether a text is short enough to be tokenized."""
    return len(text) <= CHARACTERS * context


def fault_in(text: str, ids: Sequence[int], context: int) -> str | None:
    """Return why a prompt cannot be answered; None if it can be answered.

    Args:
        text: the prompt.
        ids: its tokens; empty if the text is too long to be tokenized.
        context: largest number of tokens of prompt and answer together.
    """
    if not is_readable(text, context) or len(ids) >= context:
        return f"the prompt is longer than the model's context of {context} tokens"
    return None if len(ids) else "the prompt has no token"


def refused(rows: pa.Table, texts: Sequence[str], faults: Mapping[int, str]) -> pa.Table:
    """Return the refused rows, with the columns of `DEAD`.

    Args:
        rows: all rows, with `_row` and `_key`.
        texts: the prompt of each row.
        faults: why each refused row was refused, by its number in `rows`.
    """
    taken = rows.take(pa.array(list(faults), pa.int64()))
    seen = [as_json({PROMPT: texts[n]}) for n in faults]
    columns = [taken[ROW], taken[KEY], pa.array(list(faults.values()), pa.string())]
    return pa.table([*columns, pa.array(seen, pa.string())], schema=DEAD)
