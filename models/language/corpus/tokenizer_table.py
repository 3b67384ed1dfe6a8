"""The tokenizers that token tables were made with: a small Delta table, one row per tokenizer file.

Columns: `digest`, `file` and `contents`. A tokenizer is identified by its digest and written once.
"""

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, TableNotFoundError

from millrace.models.common.errors import TransientError, WorkError
from millrace.models.data.sources.delta_files import dataset_of
from millrace.models.language.corpus.tokenizer_folder import LanguageTokenizer

_SCHEMA = pa.schema([("digest", pa.string()), ("file", pa.string()), ("contents", pa.binary())])


def store_tokenizer(uri: str, tokenizer: LanguageTokenizer) -> None:
    """Write a tokenizer in one commit, unless the table already has it.

    Raises:
        TransientError: another tokenizer was written at the same time.
    """
    digest = tokenizer.digest
    if _is_stored(uri, digest):
        return
    rows = [
        {"digest": digest, "file": name, "contents": contents}
        for name, contents in sorted(tokenizer.files.items())
    ]
    try:
        write_deltalake(
            uri,
            pa.Table.from_pylist(rows, schema=_SCHEMA),
            mode="append",
            commit_properties=CommitProperties(app_transactions=[Transaction(digest, 1)]),
        )
    except CommitFailedError as error:
        if not _is_stored(uri, digest):
            raise TransientError(
                f"another run wrote to the tokenizer table {uri} at the same time",
                seen=error,
                hint="run again",
            ) from error


def load_tokenizer(uri: str, digest: str) -> LanguageTokenizer:
    """Return the tokenizer that has the given digest.

    Raises:
        WorkError: the table does not have this tokenizer, or its files do not match the digest.
    """
    try:
        rows = dataset_of(DeltaTable(uri)).to_table(filter=pc.field("digest") == digest)
    except TableNotFoundError:
        rows = _SCHEMA.empty_table()
    names, contents = rows["file"].to_pylist(), rows["contents"].to_pylist()
    found = LanguageTokenizer(dict(zip(names, contents, strict=True)))
    if found.digest != digest:
        raise WorkError(
            f"the tokenizer with the digest {digest[:12]} is missing or damaged in the table {uri}",
            seen=f"files of this tokenizer in the table: {', '.join(names) or 'none'}",
            hint="restore this table from a backup; or delete it and the dataset's token table (in "
            "the folder tokens beside tokenizers), and run the pipeline again",
        )
    return found


def _is_stored(uri: str, digest: str) -> bool:
    try:
        return DeltaTable(uri).transaction_version(digest) is not None
    except TableNotFoundError:
        return False
