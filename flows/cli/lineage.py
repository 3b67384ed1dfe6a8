"""`millrace lineage`: traces a prediction or an online answer back to the training data's files."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from deltalake.exceptions import DeltaError

from millrace.models.common.errors import InputError, MillraceError
from millrace.models.common.installation import Installation
from millrace.models.data.part_store import read_manifest
from millrace.models.data.snapshots import DEAD_LETTERS, PREDICTIONS, open_snapshot
from millrace.models.registry.mlflow_registry import registry_of
from millrace.models.registry.tracking import check_reachable
from millrace.models.registry.version_files import parse_dataset
from millrace.models.registry.version_retention import KEPT_TAGS, StoredRuns
from millrace.serving.batch.input.row_lineage import Origin, find_origins, find_refusals
from millrace.serving.release.ledger import ledger_of
from millrace.serving.request_table import REQUESTS, find_answers
from millrace.tasks.collect_requests import collect_model


@dataclass(frozen=True)
class Lineage:
    """The lineage of one row.

    Attributes:
        origin: the row's input file, batch job and commit; None for an online answer.
        version: the model version's run and tags in the registry, or why they cannot be read.
        data: the sources of the snapshot that the version was trained on, with sizes and digests.
        releases: the events in which that version was released, the newest first.
        answer: an online answer: request, time, row, prediction and score; empty for a batch job.
    """

    origin: Origin | None
    version: Mapping[str, Any]
    data: Mapping[str, Any]
    releases: Sequence[Mapping[str, Any]]
    answer: Mapping[str, Any] = field(default_factory=dict)


def trace_rows(
    installation: Installation, table: str, key: str, date: str | None = None
) -> list[Lineage]:
    """Return the lineage of every row whose `_key` is `key`: online answers, and batch jobs' rows.

    Args:
        installation: locates the tables and the registry.
        table: a model's name, or the URI of a table of predictions.
        key: the rows' `_key`.
        date: the date of one partition; None: all partitions.

    Raises:
        InputError: there is no such table, or no such row in it.
    """
    is_model = "/" not in table and not table.startswith(".")
    uri = installation.table(PREDICTIONS, table) if is_model else table
    answers = _answers(installation, table, key, date) if is_model else []
    try:
        origins = find_origins(uri, key, date)
    except InputError:
        if answers:
            return answers
        dead = installation.table(DEAD_LETTERS, table) if is_model else ""
        if is_model and (refused := find_refusals(dead, key, date)):
            raise InputError(
                f"the row {key!r} was not scored: it is a dead letter",
                seen="; ".join(refused),
                valid="a row that was scored",
                hint=f"it is in {dead}, with the cells as they were read",
            ) from None
        raise
    return [*answers, *(_trace(installation, origin) for origin in origins)]


def _answers(installation: Installation, model: str, key: str, date: str | None) -> list[Lineage]:
    with suppress(OSError, DeltaError):  # what is in the table already is useful on a full disk
        collect_model(installation, model)
    found = find_answers(installation.table(REQUESTS, model), key, date)
    return [
        replace(_trace_version(installation, model, int(row["model_version"])), answer=row)
        for row in found
    ]


def _trace(installation: Installation, origin: Origin) -> Lineage:
    model, number = origin.committed.get("model"), origin.committed.get("model_version")
    if model is None or number is None:
        return Lineage(origin, {}, {}, [])
    return replace(_trace_version(installation, model, int(number)), origin=origin)


def _trace_version(installation: Installation, model: str, number: int) -> Lineage:
    events = ledger_of(installation).releases(model)
    released = [
        {"at": each.at, "kind": each.kind, "asked_by": each.asked_by, "reason": each.reason}
        for each in sorted(events, key=lambda each: each.at, reverse=True)
        if each.version == number
    ]
    version = _read_version(installation, model, number)
    sources = _read_sources(installation, version.get("dataset", ""))
    return Lineage(None, version, sources, released)


def _read_version(installation: Installation, model: str, number: int) -> dict[str, Any]:
    try:
        check_reachable(installation.tracking_uri)
        found = registry_of(installation).version(model, number)
    except InputError as error:
        removed = _find_removed(installation, model, number)
        return removed or {"model": model, "version": number, "unknown": error.what}
    except MillraceError as error:  # the rest of the lineage is still useful
        return {"model": model, "version": number, "unknown": error.what}
    tags = {name: found.tags.get(f"millrace.{name}") for name in KEPT_TAGS}
    known = {name: value for name, value in tags.items() if value is not None}
    return {"model": model, "version": number, "run_id": found.run_id, **known}


def _find_removed(installation: Installation, model: str, number: int) -> dict[str, Any]:
    """Return what is known of a version that was removed; nothing if it never existed."""
    stored = StoredRuns(installation.tracking_uri, installation.artifacts)
    with suppress(MillraceError):  # the rest of the lineage is still useful
        removed = stored.find_removed(model, number)
        if removed is not None:
            return {**removed, "removed": "the version was removed by its retention"}
    return {}


def _read_sources(installation: Installation, dataset: str) -> Mapping[str, Any]:
    """Return the sources of a snapshot; `dataset` is the version's tag in the registry."""
    named = parse_dataset(dataset)
    if named is None:
        return {}
    try:
        snapshot = open_snapshot(installation, *named)
        sources = read_manifest(snapshot)
    except MillraceError as error:
        return {"unknown": error.what}
    if not snapshot.removed:
        return sources
    gone = f"the rows were removed on {snapshot.removed[:10]} by the dataset's retention"
    return {**sources, "removed": gone}
