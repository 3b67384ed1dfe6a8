"""What is known of a row of predictions: from its job back to the files of the training data."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from millrace.models.common.errors import MillraceError
from millrace.models.common.installation import Installation
from millrace.models.data.snapshots import open_snapshot
from millrace.models.registry.mlflow_registry import registry_of
from millrace.models.registry.tracking import check_reachable
from millrace.serving.batch.input.row_lineage import Origin, find_origins
from millrace.serving.release.ledger import ledger_of

TAGS = ("certificate", "candidate", "dataset", "dataset_digest", "digest")


@dataclass(frozen=True)
class Lineage:
    """A row's way.

    Attributes:
        origin: its file, its job and the commit.
        version: what the registry says of the model's version: its run and its tags; why it says
            nothing where it cannot.
        data: the sources of the snapshot that it learnt from, with sizes and digests.
        releases: the events in which that version was released, the newest first.
    """

    origin: Origin
    version: Mapping[str, Any]
    data: Mapping[str, Any]
    releases: Sequence[Mapping[str, Any]]


def lineage(places: Installation, table: str, key: str, date: str | None = None) -> list[Lineage]:
    """Trace the rows of a key.

    Args:
        places: where tables and registry are.
        table: a model's name, or the URI of a table of predictions.
        key: the rows' `_key`.
        date: of one partition; None for all.

    Raises:
        InputError: there is no such table, or no such row in it.
    """
    named = "/" not in table and not table.startswith(".")
    uri = places.table("predictions", table) if named else table
    return [_traced(places, origin) for origin in find_origins(uri, key, date)]


def _traced(places: Installation, origin: Origin) -> Lineage:
    model, number = origin.committed.get("model"), origin.committed.get("model_version")
    if model is None or number is None:
        return Lineage(origin, {}, {}, [])
    events = ledger_of(places).releases(model)
    released = [
        {"at": each.at, "kind": each.kind, "asked_by": each.asked_by, "reason": each.reason}
        for each in sorted(events, key=lambda each: each.at, reverse=True)
        if each.version == int(number)
    ]
    version = _version(places, model, int(number))
    return Lineage(origin, version, _data(places, version.get("dataset", "")), released)


def _version(places: Installation, model: str, number: int) -> dict[str, Any]:
    try:
        check_reachable(places.tracking_uri)
        found = registry_of(places).version(model, number)
    except MillraceError as error:  # a row is traced as far as it can be
        return {"model": model, "version": number, "unknown": error.what}
    tags = {name: found.tags.get(f"millrace.{name}") for name in TAGS}
    known = {name: value for name, value in tags.items() if value is not None}
    return {"model": model, "version": number, "run_id": found.run_id, **known}


def _data(places: Installation, dataset: str) -> Mapping[str, Any]:
    """Return the manifest of a snapshot by its words in the registry, `NAME version N`."""
    name, _, number = dataset.partition(" version ")
    if not number.isdigit():
        return {}
    try:
        return open_snapshot(places, name, int(number)).source
    except MillraceError as error:
        return {"unknown": error.what}
