"""The predictions of a model that have a label: those of batch jobs, and online answers."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import deltalake
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from millrace.models.common.errors import InputError
from millrace.models.common.installation import Installation
from millrace.models.config.dataset_spec import DatasetSpec
from millrace.models.config.pipeline import Pipeline
from millrace.models.data.coerce import cast
from millrace.models.data.schema import KEY, Column
from millrace.models.data.snapshots import PREDICTIONS
from millrace.models.data.sources.delta_files import dataset_of
from millrace.models.data.sources.open_source import open_source
from millrace.serving.batch.input.input_pieces import cells_of, declared_keys
from millrace.serving.request_table import REQUESTS
from millrace.tasks.collect_requests import dataset_columns
from millrace.tasks.label_table import ALL_DATES, DATE, LABEL, last_of_each, stored_labels
from millrace.tasks.progress import log

VERSION = "model_version"
BATCH, ONLINE = "batch", "online"
DATE_TEXT = r"^(?P<date>[0-9]{4}-[0-9]{2}-[0-9]{2})(?P<rest>[T ].*)?$"
MOST_NAMED = 10
"""Labels that a warning names."""
COMMON = [KEY, DATE, VERSION, "prediction", "score"]
"""Columns that the tables of predictions and of requests have."""


def prediction_tables(installation: Installation, model: str) -> dict[str, deltalake.DeltaTable]:
    """Return the tables with predictions of a model, by where they are from."""
    uris = {BATCH: installation.table(PREDICTIONS, model)}
    uris[ONLINE] = installation.table(REQUESTS, model)
    found = {
        name: deltalake.DeltaTable(uri)
        for name, uri in uris.items()
        if deltalake.DeltaTable.is_deltatable(uri)
    }
    if not found:
        raise InputError(
            f"there are no predictions of {model}",
            seen=uris[BATCH],
            hint="score rows with `millrace score FILE`, set serving.request_log, or name another "
            "model",
        )
    return found


def kind_of_predictions(
    installation: Installation, pipeline: Pipeline, tables: Mapping[str, deltalake.DeltaTable]
) -> pa.DataType:
    """Return the type of the predictions: that of the batch table, else that of the target.

    Raises:
        InputError: they are texts that were generated.
    """
    schemas = [pa.schema(table.schema().to_arrow()) for table in tables.values()]
    if not all("prediction" in schema.names for schema in schemas):
        raise InputError(
            f"the predictions of {pipeline.name} are texts, which labels cannot be compared with",
            valid="a model that predicts a class or a number",
        )
    if BATCH in tables:
        kind: pa.DataType = pa.schema(tables[BATCH].schema().to_arrow()).field("prediction").type
        return kind
    columns = {each.name: each for each in dataset_columns(installation, pipeline.name)}
    target = columns.get(pipeline.dataset.target)
    if target is None:
        return pa.string()
    return pa.float64() if target.type in ("int", "float") else target.arrow


def read_labels(
    installation: Installation,
    pipeline: Pipeline,
    source: str,
    label: str | None,
    key: Sequence[str],
    kind: pa.DataType,
) -> tuple[pa.Table, int]:
    """Return the labels of a file, and how many of its rows have none.

    Returns:
        `_key`, `date` (`ALL_DATES` where the file names none) and `_label`, of the predictions'
        type, and the number of bad rows. The last label of a key and date counts.
    """
    column = label or pipeline.dataset.target
    names = tuple(key) or pipeline.batch.key or pipeline.dataset.key
    spec = DatasetSpec(source=source, target=column, null_values=pipeline.dataset.null_values)
    known = dataset_columns(installation, pipeline.name)
    if not known:
        log.warning("%s has no snapshot, so its key columns are read as text", pipeline.name)
    tables, bad = [], 0
    classes = next(
        (each.categories for each in known if each.name == pipeline.dataset.target), None
    )
    wanted, nulls = _column_of(column, kind), pipeline.dataset.null_values
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
        values = _known_classes(_values(cells_of(rows, column), wanted, kind, nulls), classes)
        dates = pa.nulls(rows.num_rows, pa.string())
        if DATE in rows.schema.names and DATE not in names:
            dates = read_dates(cells_of(rows, DATE))
        found = pa.table({KEY: keys, DATE: dates.fill_null(ALL_DATES), LABEL: values})
        good = found.filter(pc.and_(values.is_valid(), keys.is_valid()))
        bad += len(found) - len(good)
        tables.append(good)
    if not tables:
        raise InputError(f"{source} has no labels", valid="a row for each label")
    return last_of_each(pa.concat_tables(tables), (KEY, DATE)), bad


def with_stored(
    installation: Installation, model: str, labels: pa.Table, kind: pa.DataType
) -> pa.Table:
    """Return new labels with those of earlier calls; stored ones of another type are left out."""
    stored = stored_labels(installation, model)
    texts = stored[LABEL].combine_chunks()
    typed = _values(texts, _column_of(LABEL, kind), kind, ())
    place = stored.column_names.index(LABEL)
    known = stored.set_column(place, LABEL, typed).filter(typed.is_valid())
    return last_of_each(pa.concat_tables([known, labels]), (KEY, DATE))


def _known_classes(values: pa.Array, classes: Sequence[object] | None) -> pa.Array:
    """Return labels, null where one is no class of the dataset, which a warning names."""
    if not classes:
        return values
    is_known = pc.is_in(values, pa.array(classes, values.type))
    unknown = values.filter(pc.invert(is_known)).drop_null().unique().to_pylist()
    if unknown:
        log.warning("labels that are no class: %s", ", ".join(map(str, unknown[:MOST_NAMED])))
    return pc.if_else(is_known, values, None)


def read_dates(cells: pa.Array) -> pa.Array:
    """Return dates as the partitions name them: 2026-11-23, also of 2026-11-23T10:00:00.

    Raises:
        InputError: a cell is no such date.
    """
    if pa.types.is_temporal(cells.type):
        cells = cells.cast(pa.date32())
    texts = cells.cast(pa.string())
    found = pc.struct_field(pc.extract_regex(texts, DATE_TEXT), "date")
    bad = texts.filter(pc.and_(texts.is_valid(), found.is_null()))
    if len(bad):
        raise InputError(
            f"the column {DATE} of the labels has cells that are no dates",
            seen=", ".join(bad.slice(0, 3).to_pylist()),
            valid="dates as 2026-11-23, in UTC",
            hint="write them so, or leave the column out: then a label is that of all dates",
        )
    return found


def count_matched(joined: pa.Table, labels: pa.Table) -> int:
    """Return the number of labels that a prediction was found for."""
    dated, always = _by_date(labels)
    places = joined.select([KEY, DATE])
    return int(
        dated.join(places, [KEY, DATE], join_type="left semi").num_rows
        + always.join(places.select([KEY]), [KEY], join_type="left semi").num_rows
    )


def _by_date(labels: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Return the labels of single dates, and those of all dates."""
    is_always = pc.equal(labels[DATE], ALL_DATES)
    return labels.filter(pc.invert(is_always)), labels.filter(is_always)


def _values(
    cells: pa.Array, column: Column, kind: pa.DataType, null_values: Sequence[str]
) -> pa.Array:
    """Return cells as labels or predictions; null where one is none, or is not finite."""
    values = cast(cells, column, null_values).values.cast(kind)
    if pa.types.is_floating(kind):
        return pc.if_else(pc.is_finite(values), values, None)
    return values


def _column_of(name: str, kind: pa.DataType) -> Column:
    if pa.types.is_floating(kind):
        return Column(name, "float")
    if pa.types.is_boolean(kind):
        return Column(name, "bool")
    return Column(name, "int" if pa.types.is_integer(kind) else "string")


def join_labels(
    table: deltalake.DeltaTable, labels: pa.Table, date: str | None, kind: pa.DataType
) -> pa.Table:
    """Return key, date, version, prediction, score and label of the rows that have a label.

    A label of a date goes before one of all dates.

    Of the online answers for a key, the last one of a version on a date counts. Answers of a time
    when the target was of another type do not count.
    """
    wanted = ds.field(KEY).isin(labels[KEY].combine_chunks())
    if date is not None:
        wanted &= ds.field(DATE) == date
    source = dataset_of(table)
    is_online = "time" in source.schema.names
    columns = [*COMMON, *(["time"] if is_online else [])]
    scored = source.scanner(columns=columns, filter=wanted).to_table()
    scored = scored.set_column(1, DATE, scored[DATE].cast(pa.string()))
    if is_online:
        in_order = scored.sort_by("time").drop_columns("time")
        scored = last_of_each(in_order, (KEY, DATE, VERSION))
        answers = scored["prediction"].combine_chunks()
        place = scored.column_names.index("prediction")
        typed = _values(answers, _column_of("prediction", kind), kind, ())
        scored = scored.set_column(place, "prediction", typed).filter(typed.is_valid())
    for name, kind in ((VERSION, pa.int64()), ("score", pa.float64())):
        place = scored.column_names.index(name)
        scored = scored.set_column(place, name, scored[name].cast(kind))
    dated, always = _by_date(labels)
    one = scored.join(dated, [KEY, DATE], join_type="inner")
    left = scored.join(dated.select([KEY, DATE]), [KEY, DATE], join_type="left anti")
    other = left.join(always.drop_columns(DATE), [KEY], join_type="inner")
    return pa.concat_tables([one, other.select(one.column_names)])
