"""Ingestion: reads a source into a snapshot of the dataset's Delta table.

Only new and changed files of the source are read; the rows of the others stay. Rows are checked,
counted and written to Parquet files in a private folder. Then `publish_decision` decides whether
the rows become a new snapshot, which is published in one commit. Readers never see a snapshot that
is not complete.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from millrace.models.common.errors import InputError, TransientError, WorkError
from millrace.models.common.installation import EMBEDDED, Installation, has_jobs_api
from millrace.models.config.model_kind import kind_of_family
from millrace.models.config.pipeline import Pipeline
from millrace.models.data.category_limit import require_few_categories
from millrace.models.data.forgotten_keys import ForgottenKeys
from millrace.models.data.part_store import (
    LISTED_BY,
    PartList,
    reading_of,
    stored_parts,
    write_unchanged,
)
from millrace.models.data.part_tasks import LocalTasks, TaskRunner
from millrace.models.data.parts import Combined, combine, files_of, take_same_rows
from millrace.models.data.publish_decision import decide
from millrace.models.data.read_changes import ReadRows, read_changes
from millrace.models.data.read_source import Progress
from millrace.models.data.repeated_keys import count_repeated
from millrace.models.data.snapshot_use import hold_ingestion
from millrace.models.data.snapshots import (
    DATASETS,
    OF_A_READING,
    QUARANTINE,
    Snapshot,
    metadata_of,
    newest_snapshot,
)
from millrace.models.data.sources.find_files import FileSource
from millrace.models.data.sources.open_source import open_source
from millrace.models.data.sources.source import Source
from millrace.models.data.spool import staging_folder
from millrace.models.data.table_commit import commit_files


def ingest(
    pipeline: Pipeline,
    installation: Installation,
    on_progress: Progress | None = None,
    *,
    typed_by: Snapshot | None = None,
) -> Snapshot:
    """Read a pipeline's source into the dataset's table, and return the snapshot.

    If rows and schema are the same as in the newest snapshot, no new version is made: the newest
    snapshot is returned, with `created` False.

    Args:
        pipeline: the pipeline, with the folder of its file.
        installation: where the tables and the staging folder are.
        on_progress: called after each batch with the number of rows read so far.
        typed_by: a snapshot of another table, from which a dataset without a snapshot takes the
            types of its columns, and the keys that were forgotten.

    Raises:
        InputError: the source is missing, does not fit the pipeline file or the family, or has too
            many bad rows.
        TransientError: another ingestion of the same dataset published its snapshot first.
    """
    uri, bad_uri = (
        installation.table(DATASETS, pipeline.name),
        installation.table(QUARANTINE, pipeline.name),
    )
    with hold_ingestion(uri):
        return _ingest(pipeline, installation, uri, bad_uri, on_progress, typed_by)


def _ingest(
    pipeline: Pipeline,
    installation: Installation,
    uri: str,
    bad_uri: str,
    on_progress: Progress | None,
    typed_by: Snapshot | None,
) -> Snapshot:
    table = _open(uri)
    stored = newest_snapshot(pipeline.name, table, uri) if table else None
    source = open_source(pipeline.dataset, pipeline.folder)
    spec = source.spec
    family = pipeline.model.family
    kind_of_family(family).check_dataset(spec, family)
    with (
        staging_folder(installation.staging, f"ingest-{pipeline.name}") as folder,
        task_runner(installation) as run_tasks,
    ):
        forgotten = ForgottenKeys.read(typed_by.uri if typed_by else uri)
        known = stored or typed_by
        done = read_changes(source, table, known, folder, run_tasks, on_progress, forgotten)
        combined = combine(done.parts)
        require_few_categories(done.schema, combined.statistics)
        snapshot = replace(
            _snapshot_of(pipeline.name, uri, done, combined, source),
            repeated_keys=count_repeated(uri, stored, done),
        )
        for read in done.read:
            read.bad.publish(bad_uri, spec.source, read.part.digest.hexdigest())
        verdict = decide(snapshot, stored, spec, bad_uri)
        if isinstance(verdict, InputError):
            raise verdict
        if verdict == "unchanged" and stored:
            _note_reading(stored, done, reading_of(spec))
            now = ("quarantined", "reasons", "repeated_keys", *OF_A_READING)
            return replace(stored, **{name: getattr(snapshot, name) for name in now})
        listed = PartList(tuple(part.id for part in combined.parts), reading_of(spec), done.schema)
        return _publish(table, snapshot, done, listed)


def _snapshot_of(
    name: str, uri: str, done: ReadRows, combined: Combined, source: Source
) -> Snapshot:
    """Return the snapshot to publish.

    A category column without declared categories gets the values of its rows as categories.
    """
    categories = {
        column.name: tuple(value for value, _ in combined.statistics[column.name].counts or ())
        for column in done.schema.columns
        if column.type == "category" and column.categories is None
    }
    return Snapshot(
        name=name,
        uri=uri,
        version=-1,
        digest=combined.digest.hexdigest(),
        rows=combined.digest.rows,
        schema=done.schema.with_categories(categories),
        statistics=combined.statistics,
        source=_manifest(combined, source),
        quarantined=combined.quarantined,
        reasons=combined.reasons,
        created=True,
        bad_files=combined.bad_files,
        line_breaks=combined.line_breaks,
        lacked_columns=combined.lacked_columns,
        left_out=combined.left_out,
        files_read=done.files,
    )


def _manifest(combined: Combined, source: Source) -> dict[str, Any]:
    """Return the manifest of the source; of files, it names the parts that list them."""
    if not isinstance(source, FileSource):
        return source.describe()
    return {"format": source.format, LISTED_BY: [part.id for part in combined.parts]}


@contextmanager
def task_runner(installation: Installation) -> Iterator[TaskRunner]:
    """Yield what runs the tasks of an ingestion: a Ray cluster if there is one, or this process.

    The embedded Ray would only take its own time: it has the cores that threads have already.
    """
    address = installation.ray_address
    if address == EMBEDDED or has_jobs_api(address):
        yield LocalTasks.within(installation.ingest_memory)
        return
    from millrace.models.data.cluster_tasks import cluster_tasks  # imports Ray

    with cluster_tasks(installation) as run_tasks:
        yield run_tasks


def _open(uri: str) -> DeltaTable | None:
    try:
        return DeltaTable(uri)
    except TableNotFoundError:
        return None


def _publish(
    table: DeltaTable | None, snapshot: Snapshot, done: ReadRows, listed: PartList
) -> Snapshot:
    """Commit the rows as the newest version of the table."""
    files = (file for read in done.read for file in read.files)
    metadata = {**metadata_of(snapshot), **listed.metadata()}
    schema, kept = snapshot.schema.stored, files_of(done.kept)
    try:
        with stored_parts(snapshot.uri, [read.part for read in done.read]):
            version = commit_files(snapshot.uri, table, files, schema, metadata, kept)
    except CommitFailedError as error:
        raise _conflict_error(snapshot, error) from error
    except (DeltaError, OSError) as error:
        raise _store_error(snapshot, error) from error
    return replace(snapshot, version=version)


def _note_reading(stored: Snapshot, done: ReadRows, reading: str) -> None:
    """Store what was read, if it gave the rows of the newest snapshot again from other files."""
    parts = take_same_rows([read.part for read in done.read], done.dropped)
    if not (done.read or done.dropped) or parts is None:
        return
    ids = tuple(part.id for part in combine((*done.kept, *parts)).parts)
    try:
        with stored_parts(stored.uri, parts):
            write_unchanged(stored.uri, stored.version, PartList(ids, reading, done.schema))
    except OSError as error:
        raise _store_error(stored, error) from error


def _store_error(snapshot: Snapshot, error: Exception) -> WorkError:
    """Return the error of a failed write, which is transient for a store on the network."""
    kind = TransientError if "://" in snapshot.uri else WorkError
    return kind(
        f"the snapshot of {snapshot.name!r} could not be published",
        seen=str(error).partition("\n")[0],
        hint=f"check that {snapshot.uri} can be written; the table is unchanged",
    )


def _conflict_error(snapshot: Snapshot, error: Exception) -> TransientError:
    return TransientError(
        f"another command published a snapshot of {snapshot.name!r} first",
        seen=error,
        hint="run again; this ingestion published nothing",
    )
