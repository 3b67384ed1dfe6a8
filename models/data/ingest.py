"""Ingestion: reads a source into a snapshot of the dataset's Delta table.

The source is read once, in batches: its rows are checked, counted and spooled in a private folder.
Then `publish_decision` decides whether the rows become a new snapshot, which is published in one
commit. Readers never see a snapshot that is not complete.
"""

from dataclasses import replace

from deltalake import (
    ColumnProperties,
    CommitProperties,
    DeltaTable,
    WriterProperties,
    write_deltalake,
)
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from millrace.models.common.errors import InputError, TransientError, WorkError
from millrace.models.common.installation import Installation
from millrace.models.config.model_kind import kind_of_family
from millrace.models.config.pipeline import Pipeline
from millrace.models.data.publish_decision import decide
from millrace.models.data.read_source import Progress, read_source
from millrace.models.data.schema import TableSchema
from millrace.models.data.snapshots import (
    DATASETS,
    QUARANTINE,
    Snapshot,
    metadata_of,
    newest_snapshot,
)
from millrace.models.data.sources.open_source import open_source
from millrace.models.data.spool import Spool, staging_folder

ROW_GROUP_ROWS = 16_384
ROW_GROUP_BYTES = 64 * 1024 * 1024
"""Largest row group, before compression. Readers read a whole row group."""
FILE_BYTES = 32 * 1024 * 1024
FOR_EVER = {
    "delta.logRetentionDuration": "interval 36500 days",
    "delta.enableExpiredLogCleanup": "false",
}


def ingest(
    pipeline: Pipeline, installation: Installation, on_progress: Progress | None = None
) -> Snapshot:
    """Read a pipeline's source into the dataset's table, and return the snapshot.

    If rows and schema are the same as in the newest snapshot, no new version is made: the newest
    snapshot is returned, with `created` False.

    Args:
        pipeline: the pipeline, with the folder of its file.
        installation: where the tables and the staging folder are.
        on_progress: called after each batch with the number of rows read so far.

    Raises:
        InputError: the source is missing, does not fit the pipeline file or the family, or has too
            many bad rows.
        TransientError: another ingestion of the same dataset published its snapshot first.
    """
    uri, bad_uri = (
        installation.table(DATASETS, pipeline.name),
        installation.table(QUARANTINE, pipeline.name),
    )
    table = _open(uri)
    stored = newest_snapshot(pipeline.name, table, uri) if table else None
    source = open_source(pipeline.dataset, pipeline.folder)
    spec = source.spec
    family = pipeline.model.family
    kind_of_family(family).check_dataset(spec, family)
    with staging_folder(installation.staging, f"ingest-{pipeline.name}") as folder:
        stored_schema = stored.schema if stored else None
        reading = read_source(source, spec, stored_schema, folder, on_progress)
        read = reading.snapshot(pipeline.name, uri, source.describe())
        reading.quarantine.publish(bad_uri, spec.source, read.digest)
        verdict = decide(read, stored, spec, bad_uri)
        if isinstance(verdict, InputError):
            raise verdict
        if verdict == "unchanged" and stored:
            return replace(stored, quarantined=read.quarantined, reasons=read.reasons)
        return _publish(table, read, reading.spool)


def _open(uri: str) -> DeltaTable | None:
    try:
        return DeltaTable(uri)
    except TableNotFoundError:
        return None


def _publish(table: DeltaTable | None, snapshot: Snapshot, spool: Spool) -> Snapshot:
    """Write the rows as the newest version of the table, in one commit."""
    try:
        write_deltalake(
            table or snapshot.uri,
            spool.reader(),
            mode="overwrite" if table else "error",
            schema_mode="overwrite" if table else None,
            configuration=None if table else FOR_EVER,
            target_file_size=FILE_BYTES,
            writer_properties=_writer_properties(snapshot.schema, spool),
            # No retries, because a retry would overwrite the rows of a concurrent ingestion.
            commit_properties=CommitProperties(metadata_of(snapshot), max_commit_retries=0),
        )
    except CommitFailedError as error:
        raise _conflict_error(snapshot, error) from error
    except DeltaError as error:
        if "already exists" in str(error):
            raise _conflict_error(snapshot, error) from error
        raise _store_error(snapshot, error) from error
    return replace(snapshot, version=table.version() if table else 0)


def _store_error(snapshot: Snapshot, error: Exception) -> WorkError:
    """Return the error of a failed write, which is transient for a store on the network."""
    kind = TransientError if "://" in snapshot.uri else WorkError
    return kind(
        f"the snapshot of {snapshot.name!r} could not be published",
        seen=str(error).partition("\n")[0],
        hint=f"check that {snapshot.uri} can be written; the table is unchanged",
    )


def _writer_properties(schema: TableSchema, spool: Spool) -> WriterProperties:
    """Return Parquet settings: dictionary encoding for categories only.

    Numbers and keys hardly repeat, and dictionary encoding makes writing them take 4 times as long.
    """
    categories = [column.name for column in schema.columns if column.type == "category"]
    return WriterProperties(
        max_row_group_size=row_group_rows(spool),
        compression="SNAPPY",
        default_column_properties=ColumnProperties(dictionary_enabled=False),
        column_properties=dict.fromkeys(categories, ColumnProperties(dictionary_enabled=True)),
    )


def row_group_rows(spool: Spool) -> int:
    """Return how many rows of a spool make up a row group: fewer if the rows are large."""
    fitting = ROW_GROUP_BYTES * spool.rows // max(1, spool.bytes)
    return max(1, min(ROW_GROUP_ROWS, fitting))


def _conflict_error(snapshot: Snapshot, error: Exception) -> TransientError:
    return TransientError(
        f"another ingestion of {snapshot.name!r} published a snapshot first",
        seen=error,
        hint="run again; this ingestion published nothing",
    )
