"""Two versions on one test split."""

from typing import Literal

import numpy as np

from models import snapshots
from models.answers import answers_of
from models.arrays import Array
from models.errors import InputError
from models.features import Encoding
from models.onnx_session import OnnxSession
from models.package import Package
from models.pipeline import Pipeline


def split_rows(
    pipeline: Pipeline,
    snapshot: snapshots.Snapshot,
    encoding: Encoding,
    split: Literal["validation", "test"] = "test",
) -> tuple[Array, Array]:
    """Return a split as `(features [rows, raw_width], target [rows])`.

    Raises:
        InputError: it has no rows.
    """
    features, targets = [], []
    columns = (*snapshot.schema.features, snapshot.schema.target)
    for batch in snapshots.scan(snapshot, split, pipeline.dataset.split, columns=columns):
        features.append(encoding.encode(batch))
        targets.append(encoding.encode_target(batch))
    share = getattr(pipeline.dataset.split, split)
    if not features or not sum(len(part) for part in targets):
        raise InputError(
            f"the {split} split has no rows",
            seen=f"{snapshot.rows} rows in all, {share:.0%} of them for {split}",
            valid="at least one row in each split",
            hint=f"bring more rows, or raise dataset.split.{split}",
        )
    return np.concatenate(features), np.concatenate(targets)


def metric_of(
    package: Package, pipeline: Pipeline, snapshot: snapshots.Snapshot, metric_name: str
) -> float | None:
    """Return a registered version's metric on a test split; None if it has another metric.

    Raises:
        MillraceError: the rows cannot be read, or the model cannot answer them.
        KeyError: the rows lack a column that the model needs.
    """
    meaning = answers_of(package.encoding)
    if meaning.metric != metric_name:
        return None
    features, target = split_rows(pipeline, snapshot, package.encoding)
    session = OnnxSession(package.model)
    answers = [session.answer(part) for part in np.array_split(features, 8) if len(part)]
    return meaning.metric_of_answers(np.concatenate(answers), target)
