"""What every job on prompts shares: how they are read, sampled and refused, and what is written."""

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
    """How tokens are chosen, and when to end; the words are vLLM's.

    Attributes:
        max_tokens: of one answer; fewer where the context has no room for them.
        temperature: 0 always takes the likeliest token.
        top_p: keep the likeliest tokens whose probabilities sum up to this.
        top_k: keep so many of the likeliest tokens; None keeps all.
        repetition_penalty: above 1 makes tokens of prompt and answer less likely.
        seed: with it, and a row's place in the input, the row's answer is drawn.
        stop: texts that end an answer; they are not part of it.
    """

    max_tokens: int = MAX_TOKENS
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int | None = None
    repetition_penalty: float = 1.0
    seed: int = 0
    stop: tuple[str, ...] = ()

    def ended(self, text: str) -> str | None:
        """Return an answer up to the first stop in it; None where there is no stop."""
        ends = [at for stop in self.stop if (at := text.find(stop)) >= 0]
        return text[: min(ends)] if ends else None


PROMPT = "prompt"
"""Column of the encoded rows, whatever it is called in the input; of a chat, what its template
makes of it."""
IS_CHAT = "is_chat"
"""Column of the encoded rows: whether the prompt is a chat's."""
CHARACTERS = 64
"""Of a prompt for each token of the context; no tokenizer is given more to read."""
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
    """What every reader needs to know, whichever engine answers.

    Attributes:
        model: registered model.
        version: its version.
        digest: of its files.
        variant: the folder of its files, on the node of the driver.
        prompt: the column with the prompts.
        sampling: how they are continued.
        key: columns that identify a row; a hash of the prompt when empty.
        dataset_columns: columns as the dataset has them, as far as that is known.
        output_bins: bins of the lengths in tokens, for their drift.
        template: the model's, of chats; None where it has none.
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
        """None: of a prompt only its tokens are compared, which the output has."""
        return ()

    @property
    def needed(self) -> tuple[str, ...]:
        """The column with the prompts."""
        return (self.prompt,)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the input that the job reads, as far as there are any."""
        return tuple(dict.fromkeys((KEY, *self.key, self.prompt)))

    @property
    def advice(self) -> str:
        """What to do about an input without the columns that are needed."""
        return (
            "name the column of the prompts in batch.prompt, what identifies a row in batch.key, "
            "and the rows with --input"
        )

    @property
    def output(self) -> pa.Schema:
        """The columns of the output."""
        return OUTPUT

    @property
    def folder(self) -> Path:
        """Where the files of the model are."""
        return self.variant

    @property
    def files(self) -> tuple[Path, ...]:
        """Those files."""
        return tuple(file for file in sorted(self.variant.iterdir()) if file.is_file())

    def moved(self, folder: Path) -> Self:
        """Return the same job with its files in another folder."""
        return replace(self, variant=folder)

    def parameters(self) -> Mapping[str, Any]:
        """Return the other settings that change the answers."""
        columns = [asdict(column) for column in self.dataset_columns]
        return {"prompt": self.prompt, "sampling": asdict(self.sampling), "held": columns}

    def encoded(self, rows: pa.RecordBatch | pa.Table) -> pa.Table:
        """Return `_key`, the prompt and `error` for every row; one without a text has an error.

        A column of messages is a column of prompts too: the model's chat template formats
        them, as for a client who sends messages.
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
        """Return what a client sends of one row: a text, or the messages of a chat."""
        (text,) = self._read(row).values.to_pylist()
        return parse_messages(text) if self.has_messages(row) else str(text)

    def _read(self, rows: pa.RecordBatch | pa.Table) -> Cast:
        """Return the cells of the prompts as text; of chats as canonical JSON."""
        cells = cells_of(rows, self.prompt)
        is_chat = self.has_messages(rows)
        return cast(cells, Column(self.prompt, "messages" if is_chat else "string"))

    def _render_chats(self, chats: pa.Array) -> tuple[pa.Array, pa.Array]:
        """Return the prompts of chats, and why the template refuses some; null for none."""
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
                (self.template.prompt(messages), None) if messages else (None, "it has no message")
            )
        except TemplateRefusal as error:
            words = f": {error}" if str(error) else ""
            return None, f"the model's chat template does not take the messages{words}"

    def compared(
        self, rows: pa.RecordBatch | pa.Table, encoded: pa.Table
    ) -> pa.RecordBatch | pa.Table:
        """Return the columns of `bins`, none of which is asked for."""
        del encoded
        return rows

    def seed_of(self, row: int) -> int:
        """Return what an answer is drawn by.

        Args:
            row: place of the row in the input.
        """
        return (self.sampling.seed + row * SEED_STEP) % SEED_SPACE


def chats_among(rows: pa.Table) -> list[bool]:
    """Return which of the encoded rows have a chat's prompt."""
    marked = IS_CHAT in rows.column_names
    return rows[IS_CHAT].to_pylist() if marked else [False] * len(rows)


def context_of(variant: Path) -> int:
    """Return how many tokens prompt and answer may have together.

    Raises:
        WorkError: the model's config does not say.
    """
    config = json.loads((variant / "config.json").read_text())
    found = next((int(config[name]) for name in CONTEXT if config.get(name)), None)
    if found is None:
        raise WorkError(
            "the model's config.json does not say its context", valid=", ".join(CONTEXT)
        )
    return found


def is_readable(text: str, context: int) -> bool:
    """Tell whether a text is short enough to be given to a tokenizer."""
    return len(text) <= CHARACTERS * context


def fault_in(text: str, ids: Sequence[int], context: int) -> str | None:
    """Return why a prompt cannot be answered, or None.

    Args:
        text: the prompt.
        ids: its tokens; none where the text is not readable.
        context: tokens that prompt and answer may have together.
    """
    if not is_readable(text, context) or len(ids) >= context:
        return f"the prompt is longer than the model's context of {context} tokens"
    return None if len(ids) else "the prompt has no token"


def refused(rows: pa.Table, texts: Sequence[str], faults: Mapping[int, str]) -> pa.Table:
    """Return the rows that were refused, of `DEAD`.

    Args:
        rows: `_row` and `_key`.
        texts: the prompt of each.
        faults: by the number of a row, why.
    """
    taken = rows.take(pa.array(list(faults), pa.int64()))
    seen = [as_json({PROMPT: texts[n]}) for n in faults]
    columns = [taken[ROW], taken[KEY], pa.array(list(faults.values()), pa.string())]
    return pa.table([*columns, pa.array(seen, pa.string())], schema=DEAD)
