"""The release table: a Delta table to which each release event appends one row."""

import json
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from millrace.models.common.errors import TransientError
from millrace.models.common.installation import Installation
from millrace.models.data.sources.delta_files import dataset_of
from millrace.serving.release.release_state import Release

CLOCK_TICK = timedelta(microseconds=1)
MAX_TRIES = 5
SCHEMA = pa.schema(
    {
        "id": pa.string(),
        "at": pa.timestamp("us", "UTC"),
        "model": pa.string(),
        "kind": pa.string(),
        "version": pa.int64(),
        "previous": pa.int64(),
        "digest": pa.string(),
        "asked_by": pa.string(),
        "reason": pa.string(),
        "evidence": pa.string(),
        "link": pa.string(),
        "seconds": pa.float64(),
    }
)


@dataclass(frozen=True)
class Ledger:
    """The release table of an installation.

    Attributes:
        uri: the Delta table, a path or a URI.
    """

    uri: str

    def append(self, release: Release) -> None:
        """Append an event, in a commit of its own.

        The event's time is later than that of the model's earlier events, even if the clock was set
        back, because the state of a model follows from the order of its events.

        Raises:
            TransientError: the table cannot be read or written.
        """
        earlier = self.releases(release.model)
        newest = max((each.at for each in earlier), default=release.at - CLOCK_TICK)
        release = replace(release, at=max(release.at, newest + CLOCK_TICK))
        values = vars(release) | {"evidence": json.dumps(dict(release.evidence))}
        row = pa.Table.from_pylist([{name: values[name] for name in SCHEMA.names}], SCHEMA)
        try:
            self._write(row)
        except (DeltaError, OSError) as error:
            raise TransientError(
                "the release table cannot be written",
                seen=str(error).splitlines()[0],
                hint=f"check that the Delta table {self.uri} can be written, then release again; "
                "what Triton serves did not change",
            ) from error

    def _write(self, row: pa.Table) -> None:
        """Append a row, and try again if another process creates the table at the same time."""
        for _ in range(MAX_TRIES - 1):
            with suppress(CommitFailedError):
                write_deltalake(self.uri, row, mode="append")
                return
        write_deltalake(self.uri, row, mode="append")

    def releases(self, model: str | None = None) -> tuple[Release, ...]:
        """Return the events of one model or of all, oldest first.

        Raises:
            TransientError: the table cannot be read.
        """
        try:
            if not _exists(self.uri):
                return ()
            rows = dataset_of(DeltaTable(self.uri)).to_table()
        except (DeltaError, OSError) as error:
            raise TransientError(
                "the release table cannot be read",
                seen=str(error).splitlines()[0],
                hint=f"check that the Delta table {self.uri} can be read",
            ) from error
        if model is not None:
            rows = rows.filter(pc.equal(rows["model"], model))
        return tuple(
            Release(**{**row, "evidence": json.loads(row["evidence"])})
            for row in rows.sort_by("at").to_pylist()
        )

    def by_model(self, model: str | None = None) -> dict[str, tuple[Release, ...]]:
        """Return the events of every model or of one, by model, oldest first."""
        grouped: dict[str, tuple[Release, ...]] = {}
        for release in self.releases(model):
            grouped[release.model] = (*grouped.get(release.model, ()), release)
        return grouped


def ledger_of(installation: Installation) -> Ledger:
    """Return the release table of an installation."""
    return Ledger(installation.table("releases"))


def _exists(uri: str) -> bool:
    if "://" not in uri and not Path(uri).exists():
        return False
    try:
        return bool(DeltaTable.is_deltatable(uri))
    except TableNotFoundError:
        return False
