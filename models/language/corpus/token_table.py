"""Token tables: a snapshot's documents as packed sequences of tokens, in a Delta table.

One row is one sequence: `split`, `position` (0, 1, … within the split), `input_ids`, `lengths`
(number of tokens of each chunk) and `answer` (which tokens count in the loss; null if all count). A
chunk is a document, or a part of a long document. Each version of the table is one commit, with a
`TokenTable` in its metadata. A fingerprint identifies the inputs that a version is made from. If a
version with the same fingerprint exists, nothing is written.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import uuid4

from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from millrace.models.common.errors import InputError, TransientError, WorkError
from millrace.models.common.installation import Installation
from millrace.models.config.dataset_spec import Split, SplitSpec
from millrace.models.config.training_spec import ModelSpec
from millrace.models.data.derived_tables import SNAPSHOT_DIGEST
from millrace.models.data.messages import parse_messages
from millrace.models.data.read_source import Progress
from millrace.models.data.row_files import RowFile, RowFiles
from millrace.models.data.snapshots import Snapshot, scan
from millrace.models.data.spool import staging_folder
from millrace.models.data.table_commit import commit_files
from millrace.models.data.table_files import has_files
from millrace.models.language.corpus.documents import Document, documents_of, kind_of
from millrace.models.language.corpus.packing import SCHEMA, batches_of, pack
from millrace.models.language.corpus.tokenizer_folder import (
    LanguageTokenizer,
    learn_tokenizer,
    read_tokenizer,
)
from millrace.models.language.corpus.tokenizer_table import load_tokenizer, store_tokenizer

METADATA = "millrace.tokens"
TOKENS, TOKENIZERS = "tokens", "tokenizers"
SPLITS: tuple[Split, ...] = ("train", "validation", "test")
FORMAT = 1
"""Part of the fingerprint. Increase it if a code change makes different sequences from the same
documents."""
READ_ROWS = 256
"""Number of documents that are read at once."""


@dataclass(frozen=True)
class SplitCounts:
    """Counts of one split of a token table.

    Attributes:
        rows: number of sequences.
        documents: number of documents in the sequences.
        tokens: number of tokens in the sequences.
        loss_tokens: number of tokens that are predicted and count in the loss.
        skipped: number of snapshot rows without text or without an answer.
    """

    rows: int = 0
    documents: int = 0
    tokens: int = 0
    loss_tokens: int = 0
    skipped: int = 0


@dataclass(frozen=True)
class TokenTable:
    """One version of a token table.

    Attributes:
        name: the dataset's name.
        uri: address of the Delta table.
        version: the Delta table's version.
        fingerprint: digest of the inputs that the version is made from.
        snapshot_version: version of the dataset's snapshot.
        snapshot_digest: digest of the snapshot's rows.
        context: largest number of tokens in a sequence.
        tokenizer_uri: address of the table that has the tokenizer.
        tokenizer_digest: digest of the tokenizer.
        splits: counts of each split.
        created: true if this call made the version, false if the version existed.
    """

    name: str
    uri: str
    version: int
    fingerprint: str
    snapshot_version: int
    snapshot_digest: str
    context: int
    tokenizer_uri: str
    tokenizer_digest: str
    splits: Mapping[Split, SplitCounts] = field(repr=False)
    created: bool = False

    def tokenizer(self) -> LanguageTokenizer:
        """Read the tokenizer that this version was made with."""
        return load_tokenizer(self.tokenizer_uri, self.tokenizer_digest)


def make_token_table(
    snapshot: Snapshot,
    shares: SplitSpec,
    model: ModelSpec,
    folder: Path,
    installation: Installation,
    on_progress: Progress | None = None,
) -> TokenTable:
    """Return a snapshot's token table; make it unless a version with its fingerprint exists.

    Memory does not grow with the snapshot. If a tokenizer is trained, memory grows with the number
    of different words.

    Args:
        snapshot: snapshot of a corpus, of instructions or of chats.
        shares: shares of the splits.
        model: the pipeline's model; gives the tokenizer and `tokenizer.max_tokens` (the context).
        folder: the folder of the pipeline file.
        installation: names the tables and the staging folder.
        on_progress: called with the number of documents read so far.

    Raises:
        InputError: the tokenizer cannot be read, or a split has no tokens to learn from.
        TransientError: another run published a token table first.
    """
    uri = installation.table(TOKENS, snapshot.name)
    tokenizer = _read_given_tokenizer(model, folder, chat=kind_of(snapshot.schema) == "messages")
    fingerprint = fingerprint_of(snapshot, shares, model, tokenizer)
    delta = _open(uri)
    known = _find_version(snapshot.name, uri, delta, installation, fingerprint) if delta else None
    if known is not None:
        return known
    if tokenizer is None:
        tokenizer = _learn_tokenizer(snapshot, shares, model)
    with staging_folder(installation.staging, f"tokens-{snapshot.name}") as staging:
        with closing(
            RowFiles(staging, uuid4().hex, SCHEMA, ["split"], compression="zstd")
        ) as files:
            splits = _write_sequences(
                snapshot, shares, tokenizer, model.tokenizer.max_tokens, files, on_progress
            )
            written = files.finish()
        _require_documents(splits, snapshot)
        made = TokenTable(
            name=snapshot.name,
            uri=uri,
            version=-1,
            fingerprint=fingerprint,
            snapshot_version=snapshot.version,
            snapshot_digest=snapshot.digest,
            context=model.tokenizer.max_tokens,
            tokenizer_uri=installation.table(TOKENIZERS, snapshot.name),
            tokenizer_digest=tokenizer.digest,
            splits=splits,
            created=True,
        )
        store_tokenizer(made.tokenizer_uri, tokenizer)
        return _publish(delta, made, written)


def open_token_table(
    installation: Installation, name: str, fingerprint: str | None = None
) -> TokenTable:
    """Return a dataset's newest token table, or its newest one with the given fingerprint.

    Raises:
        InputError: there is no such token table.
    """
    uri = installation.table(TOKENS, name)
    delta = _open(uri)
    found = _find_version(name, uri, delta, installation, fingerprint) if delta else None
    if found is None:
        raise InputError(
            f"there is no token table of {name!r}, which holds the documents as sequences of "
            "tokens",
            seen=uri,
            hint="run the pipeline, which makes the table: millrace run FILE",
        )
    return found


def fingerprint_of(
    snapshot: Snapshot, shares: SplitSpec, model: ModelSpec, tokenizer: LanguageTokenizer | None
) -> str:
    """Return the fingerprint of a token table: a digest of all that its rows depend on.

    Args:
        snapshot: snapshot with the documents.
        shares: shares of the splits.
        model: the pipeline's model; gives the context and the size of a tokenizer to train.
        tokenizer: the given tokenizer. None if a tokenizer is trained, because the other values
            determine a trained tokenizer.
    """
    schema = snapshot.schema
    values = {
        "format": FORMAT,
        "rows": snapshot.digest,
        "key": schema.key,
        "features": schema.features,
        "target": schema.target,
        "kind": kind_of(schema),
        "split": shares.model_dump(),
        "context": model.tokenizer.max_tokens,
        "tokenizer": tokenizer.digest if tokenizer else {"learnt": model.tokenizer.vocab_size},
    }
    return sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:32]


def _read_given_tokenizer(
    model: ModelSpec, folder: Path, *, chat: bool
) -> LanguageTokenizer | None:
    """Return the pipeline's or the pretrained model's tokenizer; None if one is to be trained."""
    source = model.tokenizer.source or model.pretrained
    if source is None:
        return None
    # `model.revision` is a commit of the model's repository, not of a separate tokenizer's
    revision = model.revision if source == model.pretrained else None
    return read_tokenizer(source, folder, revision, chat=chat)


def _learn_tokenizer(snapshot: Snapshot, shares: SplitSpec, model: ModelSpec) -> LanguageTokenizer:
    chat = kind_of(snapshot.schema) == "messages"
    columns = (*snapshot.schema.features, snapshot.schema.target)
    texts = (
        text
        for batch in scan(snapshot, "train", shares, columns=columns, batch_rows=READ_ROWS)
        for column in batch.columns
        for text in column.to_pylist()
    )
    said = (
        (message["content"] for text in texts for message in parse_messages(text))
        if chat
        else texts
    )
    return learn_tokenizer(said, model.tokenizer.vocab_size, chat=chat)


def _write_sequences(
    snapshot: Snapshot,
    shares: SplitSpec,
    tokenizer: LanguageTokenizer,
    context: int,
    files: RowFiles,
    on_progress: Progress | None,
) -> dict[Split, SplitCounts]:
    """Write the sequences of all splits to the files, and return their counts."""
    splits: dict[Split, SplitCounts] = {}
    read = 0

    def on_rows(rows: int) -> None:
        nonlocal read
        read += rows
        if on_progress:
            on_progress(read)

    for split in SPLITS:
        stream = _Documents(snapshot, shares, split, tokenizer, on_rows)
        counts = SplitCounts()
        for batch, packed in batches_of(split, pack(stream, context)):
            files.add(batch)
            counts = replace(
                counts,
                rows=counts.rows + len(packed),
                tokens=counts.tokens + sum(len(each.ids) for each in packed),
                loss_tokens=counts.loss_tokens + sum(each.loss_tokens for each in packed),
            )
        splits[split] = replace(counts, documents=stream.documents, skipped=stream.skipped)
    return splits


@dataclass
class _Documents:
    """Iterates over the documents of a split and counts them."""

    snapshot: Snapshot
    shares: SplitSpec
    split: Split
    tokenizer: LanguageTokenizer
    on_rows: Callable[[int], None]
    documents: int = 0
    skipped: int = 0

    def __iter__(self) -> Iterator[Document]:
        schema = self.snapshot.schema
        columns = (*schema.features, schema.target)
        for rows in scan(
            self.snapshot, self.split, self.shares, columns=columns, batch_rows=READ_ROWS
        ):
            found = documents_of(rows, schema, self.tokenizer)
            present = [document for document in found if document is not None]
            self.documents += len(present)
            self.skipped += len(found) - len(present)
            yield from present
            self.on_rows(rows.num_rows)


def _require_documents(splits: Mapping[Split, SplitCounts], snapshot: Snapshot) -> None:
    if all(counts.loss_tokens for counts in splits.values()):
        return
    raise InputError(
        "there are too few documents to train and to evaluate a model",
        seen=", ".join(
            f"{split}: {c.documents} documents, {c.tokens} tokens" for split, c in splits.items()
        )
        + f"; {sum(counts.skipped for counts in splits.values())} of {snapshot.rows} rows are "
        "left out, because they have no text or no answer",
        valid="a document with two tokens or more in each split",
        hint="add documents, each with a key of its own, or change dataset.split",
    )


def _publish(delta: DeltaTable | None, table: TokenTable, files: Iterable[RowFile]) -> TokenTable:
    """Commit the files with the rows as the table's newest version."""
    try:
        version = commit_files(table.uri, delta, files, SCHEMA, _metadata(table))
    except CommitFailedError as error:
        raise _overtaken(table, error) from error
    except (DeltaError, OSError) as error:
        kind = TransientError if "://" in table.uri else WorkError
        raise kind(
            f"the token table of {table.name!r} could not be published",
            seen=str(error).partition("\n")[0],
            hint=f"check that {table.uri} can be written; the table is unchanged",
        ) from error
    return replace(table, version=version)


def _overtaken(table: TokenTable, error: Exception) -> TransientError:
    return TransientError(
        f"another run published a token table of {table.name!r} first",
        seen=error,
        hint="run again; this run has published nothing",
    )


def _open(uri: str) -> DeltaTable | None:
    try:
        return DeltaTable(uri)
    except TableNotFoundError:
        return None


def _metadata(table: TokenTable) -> dict[str, str]:
    left_out = ("name", "uri", "version", "tokenizer_uri", "created")
    values = {name: value for name, value in asdict(table).items() if name not in left_out}
    return {METADATA: json.dumps(values), SNAPSHOT_DIGEST: table.snapshot_digest}


def _find_version(
    name: str, uri: str, delta: DeltaTable, installation: Installation, fingerprint: str | None
) -> TokenTable | None:
    """Return the newest version, or the newest with a given fingerprint; None if there is none.

    A version whose files are gone, such as those of a removed snapshot, is left out.
    """
    for entry in sorted(delta.history(), key=lambda entry: -entry["version"]):
        values: dict[str, Any] = json.loads(entry.get(METADATA, "{}"))
        is_wanted = bool(values) and fingerprint in (None, values["fingerprint"])
        if is_wanted and has_files(uri, entry["version"]):
            splits = {split: SplitCounts(**values["splits"][split]) for split in SPLITS}
            known = {**values, "splits": splits}
            return TokenTable(
                name=name,
                uri=uri,
                version=entry["version"],
                tokenizer_uri=installation.table(TOKENIZERS, name),
                **known,
            )
    return None
