"""Erases the rows of some keys from everything that Millrace has stored of a model's data."""

import shutil
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial

import deltalake
import pyarrow.compute as pc
import pyarrow.parquet as pq

from millrace.models.common.errors import InputError, WorkError
from millrace.models.common.installation import Installation
from millrace.models.config.model_kind import all_kinds
from millrace.models.data.erase_bad_rows import KeyColumns, by_dead_letter, by_stored_row
from millrace.models.data.erase_rows import erase_in_newest, named_sizes
from millrace.models.data.erasure import Erasure
from millrace.models.data.folder import Folder
from millrace.models.data.forget_rows import (
    BadRowsFound,
    Wait,
    alone,
    forgotten_in_snapshots,
)
from millrace.models.data.forgotten_keys import ForgottenKeys, remove_forgotten
from millrace.models.data.schema import KEY
from millrace.models.data.scrub_files import Erased, find_files, scrub_files
from millrace.models.data.snapshots import (
    DATASETS,
    QUARANTINE,
    is_name,
    no_dataset,
    open_snapshot,
    scan,
)
from millrace.models.data.spool import find_left_staging
from millrace.models.data.table_commit import filesystem_of
from millrace.models.data.table_files import list_data_files, list_drafts
from millrace.serving.batch.forget_predictions import BatchTables, forget_in_batches
from millrace.serving.request_table import REQUESTS, forget_in_table
from millrace.tasks.collect_requests import collect_model
from millrace.tasks.label_table import LABEL_TABLES

FILE = "file"
"""Column of the quarantine with the path of a row's file."""
PREDICTIONS, DEAD_LETTERS, STAGING = "predictions", "dead_letters", "staging"
MAX_NAMED = 5
"""Largest number of files that an error names."""


@dataclass(frozen=True)
class Forgotten:
    """What was erased from one table, or would be.

    Attributes:
        table: the kind of table.
        uri: its URI.
        rows: number of rows that the newest version of the table had.
        files: number of files with such rows, those of earlier versions and of killed jobs among
            them.
    """

    table: str
    uri: str
    rows: int
    files: int


@dataclass(frozen=True)
class Outcome:
    """What was erased, or would be.

    Attributes:
        tables: what of each table.
        missing: the keys of which no row was found, sorted.
        forgotten_before: those of them that an earlier command has forgotten, sorted.
        failed: files that still may have rows, each with the reason.
    """

    tables: tuple[Forgotten, ...]
    missing: tuple[str, ...]
    forgotten_before: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Scope:
    """The tables of a model, and which of their rows are erased."""

    installation: Installation
    model: str
    keys: frozenset[str]
    erasures: dict[str, Erasure]

    def uri(self, table: str) -> str:
        return self.installation.table(table, self.model)

    @property
    def batch(self) -> BatchTables:
        return BatchTables(self.uri(PREDICTIONS), self.uri(DEAD_LETTERS))

    def folders(self, table: str) -> list[str]:
        """Return the folders that are searched for rows of a table."""
        return [self.uri(table), *([self.batch.jobs.uri] if table == DEAD_LETTERS else [])]

    def derived(self) -> list[Folder]:
        names = sorted({table for kind in all_kinds() for table in kind.derived_tables})
        return [Folder(self.uri(name)) for name in names]

    def outcome(self, found: dict[str, Erased], staged: int) -> Outcome:
        tables = [
            Forgotten(table, self.uri(table), each.rows, each.files)
            for table, each in found.items()
        ]
        if staged:
            tables.append(Forgotten(STAGING, str(self.installation.staging), 0, staged))
        known = frozenset[str]().union(*(each.keys for each in found.values()))
        failed = sum(found.values(), Erased()).failed
        missing = self.keys - known
        before = ForgottenKeys.read(self.uri(DATASETS)).among(missing)
        return Outcome(tuple(tables), tuple(sorted(missing)), tuple(sorted(before)), failed)


def find_rows(
    installation: Installation,
    model: str,
    keys: Collection[str],
    declared: Sequence[str] | None = None,
) -> Outcome:
    """Return where rows with some keys are, without erasing them.

    Args:
        installation: where the tables are.
        model: the model, which has the name of its dataset.
        keys: values of `_key`.
        declared: the columns of which `_key` is made, for a model without a snapshot; None: they
            are not known.

    Raises:
        InputError: the model has no tables, or a key is empty.
    """
    collect_model(installation, model)
    scope = _open_scope(installation, model, keys, declared)
    found = {}
    for table, erasure in scope.erasures.items():
        found[table] = Erased()
        for uri in scope.folders(table):
            files = find_files(uri, erasure)
            is_table = deltalake.DeltaTable.is_deltatable(uri)
            named = named_sizes(deltalake.DeltaTable(uri)) if is_table else {}
            failed = tuple(f"{uri}/{path}: the file cannot be read" for path in files.unreadable)
            rows = sum(files.only(named).values())
            found[table] += Erased(rows, len(files.files), files.keys, failed)
    return scope.outcome(found, len(find_left_staging(installation.staging, model)))


def forget(
    installation: Installation,
    model: str,
    keys: Collection[str],
    wait: Wait,
    declared: Sequence[str] | None = None,
) -> Outcome:
    """Erase the rows with some keys from a model's tables, the one of online requests among them.

    Later ingestions leave out rows with the keys that were found in snapshots or quarantine.

    A command that was stopped can be run again, and goes on.

    Args:
        installation: where the tables are.
        model: the model, which has the name of its dataset.
        keys: values of `_key`.
        wait: called again and again while a job needs the rows.
        declared: as for `find_rows`.

    Raises:
        InputError: the model has no tables, a key is empty, or the newest snapshot would have no
            row left.
        WorkError: files could not be searched or erased; everything else was erased.
        TransientError: another command changed a table again and again.
        OSError: a table's folder cannot be written.
    """
    collect_model(installation, model)
    scope = _open_scope(installation, model, keys, declared)
    erasures, bad_uri = scope.erasures, scope.uri(QUARANTINE)
    find_bad = partial(_find_bad_rows, bad_uri, erasures[QUARANTINE])
    with forgotten_in_snapshots(
        *(model, scope.uri(DATASETS), erasures[DATASETS], wait, scope.derived(), find_bad)
    ) as snapshots:
        quarantine = _forget_in_quarantine(bad_uri, erasures[QUARANTINE])
        staged = find_left_staging(installation.staging, model)
        for folder in staged:
            shutil.rmtree(folder)
    predictions, letters = forget_in_batches(
        scope.batch, erasures[PREDICTIONS], erasures[DEAD_LETTERS], wait
    )
    found = {
        DATASETS: snapshots,
        QUARANTINE: quarantine,
        PREDICTIONS: predictions,
        DEAD_LETTERS: letters,
    }
    if REQUESTS in erasures:
        found[REQUESTS] = forget_in_table(scope.uri(REQUESTS), erasures[REQUESTS])
    if LABEL_TABLES in erasures:
        found[LABEL_TABLES] = forget_in_table(scope.uri(LABEL_TABLES), erasures[LABEL_TABLES])
    outcome = scope.outcome(found, len(staged))
    if outcome.failed:
        raise _not_erased(outcome.failed)
    return outcome


def describe_key(installation: Installation, model: str) -> str | None:
    """Return the columns of a key, and a key of the newest snapshot; None for a key of one column.

    Args:
        installation: where the tables are.
        model: the model, which has the name of its dataset.
    """
    try:
        snapshot = open_snapshot(installation, model)
    except InputError:
        return None
    if len(snapshot.schema.key) < 2:
        return None
    columns = "|".join(snapshot.schema.key)
    try:
        rows = next(scan(snapshot, columns=[KEY], batch_rows=1), None)
    except OSError:  # a file was removed meanwhile; the columns are enough
        rows = None
    return f"{columns}, such as {rows[KEY][0]}" if rows is not None else columns


def allow_again(
    installation: Installation,
    model: str,
    keys: Collection[str],
    wait: Wait,
    *,
    dry_run: bool = False,
) -> frozenset[str]:
    """Let later ingestions read rows with some keys again, and return the keys that were forgotten.

    Args:
        installation: where the tables are.
        model: the model, which has the name of its dataset.
        keys: values of `_key`.
        wait: called again and again while another command erases rows.
        dry_run: whether only to look which keys were forgotten.

    Raises:
        InputError: there is no such dataset.
        OSError: the table's folder cannot be written.
    """
    uri = installation.table(DATASETS, model)
    if not is_name(model) or not Folder(uri).exists():
        raise no_dataset(installation, model)
    if dry_run:
        return ForgottenKeys.read(uri).among(keys)
    with alone(uri, wait):
        return remove_forgotten(uri, keys)


def _find_bad_rows(uri: str, erasure: Erasure) -> BadRowsFound:
    """Return the keys of the bad rows to erase, and the files of the source that they are in."""
    found, paths = find_files(uri, erasure), set[str]()
    filesystem, root = filesystem_of(uri)
    for path in found.files:
        with filesystem.open_input_file(f"{root}{path}") as stream:
            rows = pq.read_table(stream)
        if FILE in rows.schema.names:  # a table of an earlier version has no such column
            named = rows[FILE].filter(pc.is_valid(erasure.match(rows)))
            paths.update(named.drop_null().to_pylist())
    return BadRowsFound(found.keys, frozenset(paths))


def _forget_in_quarantine(uri: str, erasure: Erasure) -> Erased:
    is_table = deltalake.DeltaTable.is_deltatable(uri)
    erased = erase_in_newest(uri, erasure) if is_table else Erased()
    return erased + scrub_files(uri, erasure)


def _open_scope(
    installation: Installation,
    model: str,
    keys: Collection[str],
    declared: Sequence[str] | None,
) -> _Scope:
    if not is_name(model):
        raise no_dataset(installation, model)
    if wrong := sorted(key for key in keys if not key.strip() or not _is_text(key)):
        raise InputError(
            "a key is empty, or is no text in UTF-8, which is the key of no row",
            seen=", ".join(map(repr, wrong)),
            valid="values of the column _key",
            hint='check that the variable has a value, as in --key "$ID"',
        )
    key_columns = _find_key_columns(installation, model, declared)
    erasures = {
        DATASETS: Erasure.by_value(KEY, keys),
        QUARANTINE: by_stored_row(keys, key_columns),
        PREDICTIONS: Erasure.by_value(KEY, keys),
        DEAD_LETTERS: by_dead_letter(keys, key_columns),
    }
    for table in (REQUESTS, LABEL_TABLES):  # nobody else needs to hear of them
        if Folder(installation.table(table, model)).exists():
            erasures[table] = Erasure.by_value(KEY, keys)
    return _Scope(installation, model, frozenset(keys), erasures)


def _is_text(key: str) -> bool:
    """Return whether a key can be written; a shell passes other bytes as lone surrogates."""
    return not any("\ud800" <= letter <= "\udfff" for letter in key)


def _find_key_columns(
    installation: Installation, model: str, declared: Sequence[str] | None
) -> KeyColumns:
    """Return the columns of which `_key` is made, by the newest snapshot or as declared.

    Raises:
        InputError: nothing of the model is stored, or its quarantine can only be searched with key
            columns, which are not known.
    """
    try:
        schema = open_snapshot(installation, model).schema
        return {name: schema.find(name) for name in schema.key}
    except InputError:
        tables = (DATASETS, QUARANTINE, PREDICTIONS, DEAD_LETTERS, REQUESTS, LABEL_TABLES)
        stored = [table for table in tables if _has_files(installation.table(table, model))]
        if not stored and not find_left_staging(installation.staging, model):
            raise
    if declared is None and QUARANTINE in stored:
        raise InputError(
            f"the columns that make the key of {model!r} are not known, so its quarantined rows "
            "cannot be searched",
            seen="no snapshot, and no pipeline file of this model in MILLRACE_PIPELINES",
            valid="the columns of dataset.key",
            hint="name them: --key-column NAME, once for each",
        )
    return dict.fromkeys(declared or ())


def _has_files(uri: str) -> bool:
    """Return whether a table's folder has rows, of a table or of a killed job."""
    return bool(list_data_files(uri) or list_drafts(uri))


def _not_erased(failed: Sequence[str]) -> WorkError:
    more = f"; and {len(failed) - MAX_NAMED} more" if len(failed) > MAX_NAMED else ""
    return WorkError(
        f"{len(failed)} files still may have the rows; from all others they are erased",
        seen="; ".join(failed[:MAX_NAMED]) + more,
        hint="set retention.snapshots, or retention.predictions, in the pipeline file, so that "
        "`millrace clean` removes the versions that name these files; then run this command again",
    )
