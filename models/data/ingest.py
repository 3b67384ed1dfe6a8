"""Ingestion: reads a source into a snapshot of the dataset's Delta table.

The source is read once, in batches: its rows are checked, counted and written to Parquet files in a
private folder. Then `publish_decision` decides whether the rows become a new snapshot, which is
published in one commit. Readers never see a snapshot that is not complete.
"""

from collections.abc import Iterable
from dataclasses import replace

from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from millrace.models.common.errors import InputError, TransientError, WorkError
from millrace.models.common.installation import Installation
from millrace.models.config.model_kind import kind_of_family
from millrace.models.config.pipeline import Pipeline
from millrace.models.data.publish_decision import decide
from millrace.models.data.read_source import Progress, read_source
from millrace.models.data.row_files import RowFile
from millrace.models.data.snapshots import (
    DATASETS,
    QUARANTINE,
    Snapshot,
    metadata_of,
    newest_snapshot,
)
from millrace.models.data.sources.open_source import open_source
from millrace.models.data.spool import staging_folder
from millrace.models.data.table_commit import commit_files


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
        return _publish(table, read, reading.files)


def _open(uri: str) -> DeltaTable | None:
    try:
        return DeltaTable(uri)
    except TableNotFoundError:
        return None


def _publish(table: DeltaTable | None, snapshot: Snapshot, files: Iterable[RowFile]) -> Snapshot:
    """Commit the rows as the newest version of the table."""
    try:
        version = commit_files(
            snapshot.uri, table, files, snapshot.schema.stored, metadata_of(snapshot)
        )
    except CommitFailedError as error:
        raise _conflict_error(snapshot, error) from error
    except (DeltaError, OSError) as error:
        raise _store_error(snapshot, error) from error
    return replace(snapshot, version=version)


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
        f"another ingestion of {snapshot.name!r} published a snapshot first",
        seen=error,
        hint="run again; this ingestion published nothing",
    )
