"""Joins labels that came back to a model's predictions, and says how the model does now.

The predictions are those of batch jobs, and the online answers of `serving.request_log`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import deltalake
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from millrace.models.common.arrays import Array
from millrace.models.common.errors import InputError, MillraceError
from millrace.models.common.installation import Installation
from millrace.models.comparison.live_metric import (
    Counted,
    Fall,
    find_fall,
    rmse_interval,
    wilson,
)
from millrace.models.data.schema import KEY
from millrace.models.registry.mlflow_registry import Registry, registry_of
from millrace.models.registry.model_names import require_model_name
from millrace.models.registry.named_version import version_named
from millrace.models.registry.version_files import CHAMPION, ModelVersion
from millrace.tasks.collect_requests import collect_model
from millrace.tasks.feedback_history import LiveDay, history_with, store_days
from millrace.tasks.kinds.certified import pipeline_of
from millrace.tasks.kinds.steps import steps_of
from millrace.tasks.label_table import ALL_DATES, DATE, LABEL, store_labels
from millrace.tasks.labelled_predictions import (
    BATCH,
    COMMON,
    ONLINE,
    VERSION,
    count_matched,
    join_labels,
    kind_of_predictions,
    prediction_tables,
    read_labels,
    with_stored,
)
from millrace.tasks.online_drift import OnlineDrift, read_online_drift
from millrace.tasks.progress import log

MOST_KEYS = 3
"""Keys that an error names."""
BINS = 10
"""Bins of the probability in which the calibration is measured."""


@dataclass(frozen=True)
class Reliability:
    """How often the predictions of about one probability were right.

    Attributes:
        score: mean probability of the predicted class.
        right: share of the predictions that were right.
        rows: number of predictions.
    """

    score: float
    right: float
    rows: int


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
        reliability: the bins of the calibration.
        history: the days, with those of earlier calls.
        drift: how far the rows of the newest week of logged requests are from the training rows.
    """

    model: str
    days: tuple[LiveDay, ...]
    labels: int
    matched: int
    unreadable: int
    calibration: float | None
    certified: Mapping[int, float]
    falls: Mapping[int, Fall]
    reliability: tuple[Reliability, ...] = ()
    history: tuple[LiveDay, ...] = ()
    drift: tuple[OnlineDrift, ...] = ()


def read_feedback(
    installation: Installation,
    model: str,
    source: str | None,
    *,
    label: str | None = None,
    key: Sequence[str] = (),
    date: str | None = None,
) -> Feedback:
    """Join labels to the predictions of a model by key, and store what they say.

    A label without a date is that of its key on every date. Labels are kept, so that a file may
    have only what is new, and the figures are of all labels so far.

    Args:
        installation: where the registry and the tables are.
        model: the model.
        source: the labels: a file, a glob, a URI or a Delta table, with the key, the label and
            perhaps `date`; None: no new labels.
        label: the column of the labels; None: the target of the dataset.
        key: the key columns; empty: those of the pipeline.
        date: the only date whose predictions are labelled, and that of labels without one; None:
            all of them.

    Raises:
        InputError: there are no such predictions or labels, or nothing identifies the rows.
        TransientError: MLflow, or the labels' store, does not answer.
    """
    require_model_name(model)
    registry = registry_of(installation)
    pipeline = pipeline_of(registry.fetch(_champion_or_newest(registry, model)))
    collect_model(installation, model)
    drift = read_online_drift(installation, model, pipeline.batch.max_drift)
    if source is None:
        return _without_labels(installation, model, drift)
    tables = prediction_tables(installation, model)
    kind = kind_of_predictions(installation, pipeline, tables)
    labels, unreadable = read_labels(installation, pipeline, source, label, key, kind)
    if date is not None:
        dates = pc.if_else(pc.equal(labels[DATE], ALL_DATES), date, labels[DATE])
        labels = labels.set_column(labels.column_names.index(DATE), DATE, dates)
    known = with_stored(installation, model, labels, kind)
    found_by = {name: join_labels(table, known, date, kind) for name, table in tables.items()}
    found = replace(_measure(installation, model, labels, unreadable, found_by), drift=drift)
    _require_matches(found, labels, tables)
    store_labels(installation, model, labels)
    store_days(installation, model, found.days)
    return found


def _measure(
    installation: Installation,
    model: str,
    labels: pa.Table,
    unreadable: int,
    found_by: Mapping[str, pa.Table],
) -> Feedback:
    """Return what labelled predictions say.

    Args:
        installation: where the registry and the tables are.
        model: the model.
        labels: the labels of the file.
        unreadable: number of its rows without a label.
        found_by: the predictions with a label, of this file or an earlier one, by their source.
    """
    joined = pa.concat_tables(each.select([*COMMON, LABEL]) for each in found_by.values())
    is_class = not pa.types.is_floating(joined.schema.field(LABEL).type)
    every = [day for name, each in found_by.items() for day in _days(each, name, is_class=is_class)]
    days = tuple(sorted(every, key=lambda day: (day.date, day.version)))
    certified = _certified(installation, model, {each.version for each in days}) if is_class else {}
    history = tuple(history_with(installation, model, days))
    falls = _find_falls(certified, history)
    reliability = tuple(_reliability(joined)) if is_class and joined.num_rows else ()
    for version, fall in falls.items():
        log.warning("%s version %d: %s", model, version, describe_fall(fall))
    return Feedback(
        model,
        days,
        labels.num_rows + unreadable,
        count_matched(joined, labels),
        unreadable,
        _calibration(reliability) if reliability else None,
        {version: test.share for version, test in certified.items()},
        falls,
        reliability,
        history,
    )


def _champion_or_newest(registry: Registry, model: str) -> ModelVersion:
    """Return the champion, or the newest version of a model that has none yet.

    Raises:
        InputError: the model has no version.
    """
    champion = registry.by_alias(model, CHAMPION)
    newest = [] if champion is not None else registry.newest_versions(model)
    return champion or (newest[0] if newest else version_named(model, registry))


def _without_labels(
    installation: Installation, model: str, drift: tuple[OnlineDrift, ...]
) -> Feedback:
    """Return what earlier labels said, and the drift of the requests."""
    history = tuple(history_with(installation, model, ()))
    shares = {each.version for each in history if each.metric == "accuracy"}
    certified = _certified(installation, model, shares)
    if not history and not drift:
        raise InputError(
            f"there is nothing to say of {model}",
            seen="no labels so far, and no logged requests of a version with its training rows",
            hint="name labels with --labels FILE, or set serving.request_log",
        )
    return Feedback(
        *(model, (), 0, 0, 0, None),
        {version: test.share for version, test in certified.items()},
        _find_falls(certified, history),
        history=history,
        drift=drift,
    )


def _require_matches(
    found: Feedback, labels: pa.Table, tables: Mapping[str, deltalake.DeltaTable]
) -> None:
    """Refuse labels of which none has a prediction: they have another key.

    Raises:
        InputError: none has one.
    """
    if found.matched or not labels.num_rows:
        return
    wanted = ds.field(KEY).isin(labels[KEY].combine_chunks())
    if any(each.to_pyarrow_dataset().count_rows(filter=wanted) for each in tables.values()):
        return  # they are of other dates
    known = [
        each.to_pyarrow_dataset().head(MOST_KEYS, columns=[KEY])[KEY] for each in tables.values()
    ]
    keys = [str(key) for column in known for key in column.drop_null().to_pylist()]
    mine = labels[KEY].slice(0, MOST_KEYS).to_pylist()
    raise InputError(
        f"none of {labels.num_rows:,} labels has a prediction of {found.model}",
        seen=f"keys of labels: {', '.join(mine)}; of predictions: {', '.join(keys) or 'none'}",
        hint="name the key's columns with --key, and score with the same batch.key",
    )


def _find_falls(certified: Mapping[int, Counted], days: Sequence[LiveDay]) -> dict[int, Fall]:
    """Return the falls of the accuracy that the newest day of each version shows."""
    falls = dict[int, Fall]()
    for version, test in certified.items():
        for source in (BATCH, ONLINE):
            own = [each for each in days if (each.version, each.source) == (version, source)]
            counted = [Counted(each.labels, round(each.value * each.labels)) for each in own]
            fall = find_fall(test, counted)
            known = falls.get(version)
            if fall is not None and (known is None or fall.p_value < known.p_value):
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


def _days(joined: pa.Table, source: str, *, is_class: bool) -> Iterator[LiveDay]:
    versions, dates = joined[VERSION].to_numpy(), np.array(joined[DATE].to_pylist(), dtype=object)
    scores = _hits(joined) if is_class else _squared_errors(joined)
    for date, version in sorted(set(zip(dates.tolist(), versions.tolist(), strict=True))):
        own = scores[(dates == date) & (versions == version)]
        rows = len(own)
        if is_class:
            low, high = wilson(int(own.sum()), rows)
            value = float(own.mean())
            yield LiveDay(date, int(version), rows, "accuracy", value, low, high, source)
        else:
            value = float(np.sqrt(own.mean()))
            yield LiveDay(date, int(version), rows, "rmse", value, *rmse_interval(own), source)


def _hits(joined: pa.Table) -> Array:
    return np.asarray(pc.equal(joined["prediction"], joined[LABEL]).to_numpy(), dtype=np.float64)


def _squared_errors(joined: pa.Table) -> Array:
    return np.asarray(np.square(pc.subtract(joined["prediction"], joined[LABEL]).to_numpy()))


def _reliability(joined: pa.Table) -> Iterator[Reliability]:
    hits, scores = _hits(joined), joined["score"].to_numpy()
    place = np.minimum((scores * BINS).astype(int), BINS - 1)
    for each in np.unique(place):
        own = place == each
        yield Reliability(float(scores[own].mean()), float(hits[own].mean()), int(own.sum()))


def _calibration(bins: Sequence[Reliability]) -> float:
    """Return the expected calibration error (Naeini, Cooper and Hauskrecht 2015)."""
    rows = sum(each.rows for each in bins)
    return sum(abs(each.right - each.score) * each.rows for each in bins) / rows


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
