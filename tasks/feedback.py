"""Joins labels that came back to the predictions of batch jobs, and says how the model does now."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import deltalake
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from millrace.models.common.arrays import Array
from millrace.models.common.errors import InputError, MillraceError
from millrace.models.common.installation import Installation
from millrace.models.comparison.live_metric import Counted, Fall, find_fall, wilson
from millrace.models.config.dataset_spec import DatasetSpec
from millrace.models.config.pipeline import Pipeline
from millrace.models.data.coerce import cast
from millrace.models.data.schema import KEY, Column
from millrace.models.data.snapshots import PREDICTIONS, open_snapshot
from millrace.models.data.sources.delta_files import dataset_of
from millrace.models.data.sources.open_source import open_source
from millrace.models.registry.mlflow_registry import registry_of
from millrace.models.registry.model_names import require_model_name
from millrace.models.registry.named_version import version_named
from millrace.serving.batch.input.input_pieces import cells_of, declared_keys
from millrace.tasks.kinds.certified import pipeline_of
from millrace.tasks.kinds.steps import steps_of
from millrace.tasks.progress import log

FEEDBACK = "feedback"
"""Folder of the tables with what the labels of each model said."""
BINS = 10
"""Bins of the probability in which the calibration is measured."""
DATE, VERSION, LABEL = "date", "model_version", "_label"


@dataclass(frozen=True)
class LiveDay:
    """How a version did on the labelled rows of one date.

    Attributes:
        date: the date of the partition.
        version: the version that scored it.
        labels: number of rows with a label.
        metric: what `value` is: accuracy or rmse.
        value: the metric.
        low: lower end of its 95% interval; None for rmse.
        high: its upper end.
    """

    date: str
    version: int
    labels: int
    metric: str
    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Feedback:
    """What the labels say of a model.

    Attributes:
        model: the model.
        days: the dates with labels, by version, the oldest first.
        labels: number of rows of the label file.
        matched: number of them that a prediction was found for.
        unreadable: number of labels that are no value of the target.
        calibration: mean distance between a class's probability and how often it was right, over
            bins of the probability; None for numbers, and without labels.
        certified: accuracy of each version on the test split of its certificate.
        falls: the falls of the accuracy that are more than chance, by version.
    """

    model: str
    days: tuple[LiveDay, ...]
    labels: int
    matched: int
    unreadable: int
    calibration: float | None
    certified: Mapping[int, float]
    falls: Mapping[int, Fall]


def read_feedback(
    installation: Installation,
    model: str,
    source: str,
    *,
    label: str | None = None,
    key: Sequence[str] = (),
    date: str | None = None,
) -> Feedback:
    """Join labels to the predictions of a model by key, and store what they say.

    A label without a date is that of its key on every date. The figures of a date and version
    replace those of an earlier call.

    Args:
        installation: where the registry and the tables are.
        model: the model.
        source: the labels: a file, a glob, a URI or a Delta table, with the key, the label and
            perhaps `date`.
        label: the column of the labels; None: the target of the dataset.
        key: the key columns; empty: those of the pipeline.
        date: the only date whose predictions are labelled; None: all of them.

    Raises:
        InputError: there are no such predictions or labels, or nothing identifies the rows.
        TransientError: MLflow, or the labels' store, does not answer.
    """
    require_model_name(model)
    registry = registry_of(installation)
    pipeline = pipeline_of(registry.fetch(version_named(model, registry)))
    table = _predictions(installation, model)
    schema = pa.schema(table.schema().to_arrow())
    kind = schema.field("prediction").type if "prediction" in schema.names else None
    if kind is None:
        raise InputError(
            f"the predictions of {model} are texts, which labels cannot be compared with",
            valid="a model that predicts a class or a number",
        )
    labels, unreadable = _read_labels(installation, pipeline, source, label, key, kind)
    joined = _join(table, labels, date)
    is_class = not pa.types.is_floating(kind)
    days = tuple(_days(joined, is_class=is_class))
    certified = _certified(installation, model, {each.version for each in days}) if is_class else {}
    falls = _find_falls(certified, _with_stored(installation, model, days))
    for version, fall in falls.items():
        log.warning("%s version %d: %s", model, version, describe_fall(fall))
    found = Feedback(
        model,
        days,
        labels.num_rows + unreadable,
        _count_matched(joined, labels),
        unreadable,
        _calibration(joined) if is_class and joined.num_rows else None,
        {version: test.share for version, test in certified.items()},
        falls,
    )
    _store(installation, found)
    return found


def _find_falls(certified: Mapping[int, Counted], days: Sequence[LiveDay]) -> dict[int, Fall]:
    """Return the falls of the accuracy that the newest day of each version shows."""
    falls = {}
    for version, test in certified.items():
        own = [each for each in days if each.version == version]
        counted = [Counted(each.labels, round(each.value * each.labels)) for each in own]
        if (fall := find_fall(test, counted)) is not None:
            falls[version] = fall
    return falls


def describe_fall(fall: Fall) -> str:
    """Return a fall in words."""
    when = f"the newest {fall.days} days" if fall.days > 1 else "the newest day"
    when = when if fall.days else "all its days"
    return (
        f"its accuracy fell from {fall.before:.4f} to {fall.now:.4f} in {when} "
        f"(p = {fall.p_value:.1g})"
    )


def _predictions(installation: Installation, model: str) -> deltalake.DeltaTable:
    uri = installation.table(PREDICTIONS, model)
    if not deltalake.DeltaTable.is_deltatable(uri):
        raise InputError(
            f"there are no predictions of {model}",
            seen=uri,
            hint="score rows with `millrace score FILE`, or name another model",
        )
    return deltalake.DeltaTable(uri)


def _read_labels(
    installation: Installation,
    pipeline: Pipeline,
    source: str,
    label: str | None,
    key: Sequence[str],
    kind: pa.DataType,
) -> tuple[pa.Table, int]:
    """Return the labels with their keys, the last one of a repeated key, and how many are bad."""
    column = label or pipeline.dataset.target
    names = tuple(key) or pipeline.batch.key or pipeline.dataset.key
    spec = DatasetSpec(source=source, target=column, null_values=pipeline.dataset.null_values)
    known: tuple[Column, ...] = ()
    try:
        known = open_snapshot(installation, pipeline.name).schema.columns
    except InputError:
        log.warning("%s has no snapshot, so its key columns are read as text", pipeline.name)
    tables, bad = [], 0
    wanted = Column(column, "float") if pa.types.is_floating(kind) else _category(column, kind)
    for chunk in open_source(spec, Path.cwd()).chunks():
        rows = chunk.rows
        bad += len(chunk.unreadable)
        if not rows.num_rows:
            continue
        keys = declared_keys(rows, names, known)
        if keys is None or (KEY not in rows.schema.names and set(names) - set(rows.schema.names)):
            raise InputError(
                "the labels have no key by which predictions are found",
                seen=f"columns {', '.join(rows.schema.names)}",
                valid=f"the columns {', '.join(names)}" if names else f"the column {KEY}",
                hint="name the key with --key, and score with batch.key",
            )
        read = cast(cells_of(rows, column), wanted)
        values = read.values.cast(kind)
        columns = {KEY: keys, LABEL: values}
        if DATE in rows.schema.names and DATE not in names:
            columns[DATE] = _dates(cells_of(rows, DATE))
        found = pa.table(columns)
        good = found.filter(pc.and_(values.is_valid(), keys.is_valid()))
        bad += len(found) - len(good)
        tables.append(good)
    if not tables:
        raise InputError(f"{source} has no labels", valid="a row for each label")
    labels = pa.concat_tables(tables)
    by = [name for name in (KEY, DATE) if name in labels.column_names]
    numbered = labels.append_column("_n", pa.array(range(len(labels))))
    last = numbered.group_by(by).aggregate([("_n", "max")])["_n_max"]
    return labels.take(last), bad


def _dates(cells: pa.Array) -> pa.Array:
    """Return dates as the partitions name them: 2026-11-23."""
    if pa.types.is_temporal(cells.type):
        cells = cells.cast(pa.date32())
    return cells.cast(pa.string())


def _count_matched(joined: pa.Table, labels: pa.Table) -> int:
    """Return the number of labels that a prediction was found for."""
    by = [name for name in (KEY, DATE) if name in labels.column_names]
    return int(joined.group_by(by).aggregate([]).num_rows)


def _category(name: str, kind: pa.DataType) -> Column:
    if pa.types.is_boolean(kind):
        return Column(name, "bool")
    return Column(name, "int" if pa.types.is_integer(kind) else "string")


def _join(table: deltalake.DeltaTable, labels: pa.Table, date: str | None) -> pa.Table:
    """Return key, date, version, prediction, score and label of the rows that have a label."""
    wanted = ds.field(KEY).isin(labels[KEY].combine_chunks())
    if date is not None:
        wanted &= ds.field(DATE) == date
    columns = [KEY, DATE, VERSION, "prediction", "score"]
    scored = dataset_of(table).scanner(columns=columns, filter=wanted).to_table()
    scored = scored.set_column(1, DATE, scored[DATE].cast(pa.string()))
    by = [name for name in (KEY, DATE) if name in labels.column_names]
    return scored.join(labels, keys=by, join_type="inner")


def _days(joined: pa.Table, *, is_class: bool) -> Iterator[LiveDay]:
    versions, dates = joined[VERSION].to_numpy(), np.array(joined[DATE].to_pylist(), dtype=object)
    scores = _hits(joined) if is_class else _squared_errors(joined)
    for date, version in sorted(set(zip(dates.tolist(), versions.tolist(), strict=True))):
        own = scores[(dates == date) & (versions == version)]
        rows = len(own)
        if is_class:
            low, high = wilson(int(own.sum()), rows)
            yield LiveDay(date, int(version), rows, "accuracy", float(own.mean()), low, high)
        else:
            yield LiveDay(date, int(version), rows, "rmse", float(np.sqrt(own.mean())))


def _hits(joined: pa.Table) -> Array:
    return np.asarray(pc.equal(joined["prediction"], joined[LABEL]).to_numpy(), dtype=np.float64)


def _squared_errors(joined: pa.Table) -> Array:
    return np.asarray(np.square(pc.subtract(joined["prediction"], joined[LABEL]).to_numpy()))


def _calibration(joined: pa.Table) -> float:
    """Return the expected calibration error (Naeini, Cooper and Hauskrecht 2015)."""
    hits, scores = _hits(joined), joined["score"].to_numpy()
    place = np.minimum((scores * BINS).astype(int), BINS - 1)
    error = 0.0
    for each in np.unique(place):
        own = place == each
        error += abs(float(hits[own].mean() - scores[own].mean())) * float(own.mean())
    return error


def _certified(installation: Installation, model: str, versions: set[int]) -> dict[int, Counted]:
    """Return the rows and the hits of each version's test split, as far as they are known."""
    registry, found = registry_of(installation), {}
    for version in sorted(versions):
        try:
            package = registry.fetch(registry.version(model, version))
            measured = steps_of(package.version.kind).evidence(package, installation).measured()
        except MillraceError as error:
            log.warning("version %d has no certificate to compare with: %s", version, error.what)
            continue
        if measured.metric is not None and measured.rows:
            found[version] = Counted(measured.rows, round(measured.metric * measured.rows))
    return found


def _with_stored(installation: Installation, model: str, days: Sequence[LiveDay]) -> list[LiveDay]:
    """Return the days with those of earlier calls, the oldest first."""
    uri, fresh = installation.table(FEEDBACK, model), {(each.date, each.version) for each in days}
    stored: list[LiveDay] = []
    if deltalake.DeltaTable.is_deltatable(uri):
        for row in deltalake.DeltaTable(uri).to_pyarrow_table().to_pylist():
            row.pop("measured_at")
            stored.append(LiveDay(**row))
    kept = [each for each in stored if (each.date, each.version) not in fresh]
    return sorted([*kept, *days], key=lambda each: (each.date, each.version))


def _store(installation: Installation, found: Feedback) -> None:
    """Replace the figures of these dates and versions in the model's table of feedback."""
    if not found.days:
        return
    uri, now = installation.table(FEEDBACK, found.model), datetime.now(UTC).isoformat()
    rows: list[dict[str, Any]] = [{**asdict(each), "measured_at": now} for each in found.days]
    fresh = {(each.date, each.version) for each in found.days}
    if deltalake.DeltaTable.is_deltatable(uri):
        earlier = deltalake.DeltaTable(uri).to_pyarrow_table().to_pylist()
        rows += [row for row in earlier if (row["date"], row["version"]) not in fresh]
    rows.sort(key=lambda row: (row["date"], row["version"]))
    deltalake.write_deltalake(uri, pa.Table.from_pylist(rows, SCHEMA), mode="overwrite")


SCHEMA = pa.schema(
    [
        *(("date", pa.string()), ("version", pa.int64()), ("labels", pa.int64())),
        *(("metric", pa.string()), ("value", pa.float64())),
        *(("low", pa.float64()), ("high", pa.float64()), ("measured_at", pa.string())),
    ]
)
