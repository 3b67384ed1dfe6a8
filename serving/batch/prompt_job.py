"""Prompts through a language model: one engine of OpenVINO GenAI in each actor."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from models.casts import cast
from models.checks import as_json
from models.columns import KEY, Column
from models.engine_properties import own_properties
from models.errors import WorkError
from models.features import TEXT
from models.keys import hash_keys, hash_rows
from serving.batch.blocks import Blocks, Load
from serving.batch.drift import Bins
from serving.batch.engine import Asked, Engine, Finished
from serving.batch.job import DEAD, ERROR, ROW, TOKENS_IN, TOKENS_OUT, Answers
from serving.batch.row_keys import cells_of, declared_keys
from serving.batch.sampling import Sampling
from serving.language.draft import CONTEXT

PROMPT = "prompt"
"""Column of the encoded rows, whatever it is called in the input."""
BLOCK_BYTES = 64 * 1024
"""Of prompts in one file of the output: a kill costs no more than a few of them."""
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
class PromptJob:
    """What every reader and every actor needs to know.

    Attributes:
        model: registered model.
        version: its version.
        digest: of its files.
        form: the folder of its files, on the node of the driver.
        prompt: the column with the prompts.
        sampling: how they are continued.
        key: columns that identify a row; a hash of the prompt when empty.
        held: columns as the dataset holds them, as far as that is known.
        threads: threads of each engine; 0 for all cores.
        max_num_seqs: answers that an engine works on at a time.
        cache_size_gib: memory of keys and values of each engine.
        batch_size: prompts that an engine is given at a time, the longest first.
    """

    model: str
    version: int
    digest: str
    form: Path
    prompt: str = PROMPT
    sampling: Sampling = Sampling()
    key: tuple[str, ...] = ()
    held: tuple[Column, ...] = ()
    threads: int = 0
    max_num_seqs: int = 256
    cache_size_gib: int = 1
    batch_size: int = 256

    @property
    def bins(self) -> tuple[Bins, ...]:
        """None: of texts nothing is known that could be compared."""
        return ()

    @property
    def predicted(self) -> None:
        """None, likewise."""
        return

    @property
    def needed(self) -> tuple[str, ...]:
        """The column with the prompts."""
        return (self.prompt,)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the input that are looked at, where they are there."""
        return tuple(dict.fromkeys((KEY, *self.key, self.prompt)))

    @property
    def advice(self) -> str:
        """What to do about an input without the columns that are needed."""
        return "name the column of the prompts in batch.prompt, and the rows with --input"

    @property
    def output(self) -> pa.Schema:
        """The columns of the output."""
        return OUTPUT

    @property
    def folder(self) -> Path:
        """Where the files of the model are."""
        return self.form

    @property
    def files(self) -> tuple[Path, ...]:
        """Those files."""
        return tuple(file for file in sorted(self.form.iterdir()) if file.is_file())

    def moved(self, folder: Path) -> "PromptJob":
        """Return the same job with its files in another folder."""
        return replace(self, form=folder)

    def parameters(self) -> Mapping[str, Any]:
        """Return what else changes the answers."""
        held = [asdict(column) for column in self.held]
        return {"prompt": self.prompt, "sampling": asdict(self.sampling), "held": held}

    def blocks(self, load: Load) -> Blocks:
        """Return how prompts go through Ray: always the same, to actors that only answer."""
        del load
        return Blocks(BLOCK_BYTES, self.batch_size)

    def encoded(self, rows: pa.RecordBatch | pa.Table) -> pa.Table:
        """Return `_key`, the prompt and `error` for every row; one without a text has an error."""
        read = cast(cells_of(rows, self.prompt), Column(self.prompt, "string"))
        texts = read.values
        unreadable, is_null = pa.array(read.unparsable), texts.is_null()
        is_empty = pc.fill_null(pc.equal(pc.utf8_trim_whitespace(texts), ""), fill_value=False)
        errors = pc.case_when(
            pc.make_struct(unreadable, is_null, is_empty),
            *(f"{self.prompt} {fault}" for fault in ("is not text", "is missing", "is empty")),
        )
        keys = declared_keys(rows, self.key, self.held)
        if keys is None:
            keys = hash_keys(hash_rows(pa.record_batch({TEXT: texts})))
        return pa.table({KEY: keys, PROMPT: texts, ERROR: errors.cast(pa.string())})

    def worker(self) -> "Generator":
        """Open an engine."""
        return Generator(self)


class Generator:
    """Continues tables of prompts."""

    def __init__(self, job: PromptJob) -> None:
        self.job = job
        self.context = context_of(job.form)
        self.engine = Engine(
            job.form,
            own_properties(job.form),
            threads=job.threads,
            sequences=job.max_num_seqs,
            cache_size_gib=job.cache_size_gib,
        )

    def __call__(self, rows: pa.Table) -> Answers:
        """Return the answers; a prompt that leaves no room for one is refused.

        Args:
            rows: `_row`, `_key` and the prompt.
        """
        texts, places = rows[PROMPT].to_pylist(), rows[ROW].to_pylist()
        ids = [self._tokens(text) for text in texts]
        faults = [self._fault(text, each) for text, each in zip(texts, ids, strict=True)]
        good = [n for n, fault in enumerate(faults) if fault is None]
        # The longest first: what is left at the end is short, and the engine full till then.
        good.sort(key=lambda n: -len(ids[n]))
        asked = [self._asked(ids[n], places[n]) for n in good]
        found = dict(zip(good, self.engine.finish(asked), strict=True))
        for n, answer in found.items():
            faults[n] = answer.fault
        done = [n for n in range(len(texts)) if faults[n] is None]
        return Answers(
            self._table(rows, ids, found, done),
            _refused(rows, texts, {n: fault for n, fault in enumerate(faults) if fault}),
        )

    def _tokens(self, text: str) -> Sequence[int]:
        return () if len(text) > CHARACTERS * self.context else self.engine.tokens(text)

    def _fault(self, text: str, ids: Sequence[int]) -> str | None:
        if len(text) > CHARACTERS * self.context or len(ids) >= self.context:
            return f"the prompt is longer than the model's context of {self.context} tokens"
        return None if len(ids) else "the prompt has no token"

    def _asked(self, ids: Sequence[int], row: int) -> Asked:
        sampling = self.job.sampling
        room = min(sampling.max_tokens, self.context - len(ids))
        return Asked(ids, room, (sampling.seed + row * SEED_STEP) % SEED_SPACE, sampling)

    def _table(
        self,
        rows: pa.Table,
        ids: Sequence[Sequence[int]],
        found: Mapping[int, Finished],
        done: Sequence[int],
    ) -> pa.Table:
        taken = rows.take(pa.array(done, pa.int64()))
        answers = [found[n] for n in done]
        columns = [
            taken[KEY],
            pa.array([answer.text for answer in answers], pa.string()),
            pa.array([answer.reason for answer in answers], pa.string()),
            pa.array([len(ids[n]) for n in done], pa.int32()),
            pa.array([answer.tokens for answer in answers], pa.int32()),
            pa.array(np.full(len(done), self.job.version, np.int32)),
            taken[ROW],
        ]
        return pa.table(columns, schema=OUTPUT)


def context_of(form: Path) -> int:
    """Return how many tokens prompt and answer may have together.

    Raises:
        WorkError: the model's config does not say.
    """
    config = json.loads((form / "config.json").read_text())
    found = next((int(config[name]) for name in CONTEXT if config.get(name)), None)
    if found is None:
        raise WorkError(
            "the model's config.json does not say its context", valid=", ".join(CONTEXT)
        )
    return found


def _refused(rows: pa.Table, texts: Sequence[str], faults: Mapping[int, str]) -> pa.Table:
    taken = rows.take(pa.array(list(faults), pa.int64()))
    seen = [as_json({PROMPT: texts[n]}) for n in faults]
    columns = [taken[ROW], taken[KEY], pa.array(list(faults.values()), pa.string())]
    return pa.table([*columns, pa.array(seen, pa.string())], schema=DEAD)
