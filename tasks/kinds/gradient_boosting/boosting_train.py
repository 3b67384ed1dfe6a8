"""Prepares the training of boosted trees: their encoding and XGBoost's parameters."""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from millrace.models.common.counted import counted
from millrace.models.common.errors import InputError
from millrace.models.common.installation import Installation
from millrace.models.config.pipeline import Pipeline
from millrace.models.data import snapshots
from millrace.models.inference.answers import answers_of
from millrace.models.inference.features import Encoding, text_column
from millrace.models.registry.mlflow_registry import registry_of
from millrace.models.registry.tracking import TrackedRun
from millrace.tasks.kinds.gradient_boosting.boosting_params import check_params
from millrace.tasks.kinds.graph.graph_references import reference_of
from millrace.tasks.kinds.graph.graph_train import GraphTraining, fit_rows, require_rows
from millrace.tasks.kinds.steps import Prepared
from millrace.tasks.progress import log

MOST_CATEGORIES = 256
"""The largest number of categories that a column may have if splits divide them into two sets.

The ONNX converter turns such a split into a chain of nodes.
"""


def prepare_trees(
    pipeline: Pipeline, installation: Installation, snapshot: snapshots.Snapshot, run: TrackedRun
) -> Prepared[GraphTraining]:
    """Fit the encoding, check the parameters, and return the prepared training.

    Raises:
        InputError: a parameter is unknown, one of the columns is text, or a split has too few
            rows.
    """
    from millrace.models.training.table_job import Table
    from millrace.tasks.kinds.gradient_boosting.boosting_job import BOOSTER, BoostingJob

    spec, shares = pipeline.training, pipeline.dataset.split
    if (text := text_column(snapshot.schema)) is not None:
        raise InputError(
            f"the family {pipeline.model.family!r} does not support text columns",
            seen=f"{text}: text",
            valid="columns of numbers, categories and vectors",
            hint="leave the column out of dataset.features, or set model.family: text_classifier",
        )
    rows = snapshots.count_rows(snapshot, "train", shares)
    require_rows(pipeline, snapshot, rows, spec.workers)
    encoding = fit_rows(pipeline, snapshot)
    answers_of(encoding)  # refuses a target with one class
    params = params_of(pipeline.model.params, encoding)
    job = BoostingJob(
        table=Table(snapshot, shares),
        encoding=encoding,
        train_rows=rows,
        params=params,
        workers=spec.workers,
        failures=spec.max_failures,
        seed=spec.seed,
    )
    reference = reference_of(spec, registry_of(installation), encoding)
    return Prepared(
        job,
        GraphTraining(encoding, reference),
        total=params.n_estimators,
        summary=counted(rows, "row"),
        weights=BOOSTER,
        artifact="weights",
    )


def params_of(given: Mapping[str, Any], encoding: Encoding) -> Any:
    """Return XGBoost's parameters for a pipeline file.

    Args:
        given: `model.params`.
        encoding: the encoding of the rows. If a column has more than 256 categories, every split is
            one category against the others, because the ONNX converter can convert such splits.

    Raises:
        InputError: a parameter is unknown, or its value is not valid.
    """
    from millrace.tasks.kinds.gradient_boosting.boosting_job import BoostingParams

    check_params(given)
    own = {each.name for each in fields(BoostingParams)}
    others = {name: value for name, value in given.items() if name not in own}
    params = BoostingParams(**{n: v for n, v in given.items() if n in own}, others=others)
    many = max((len(f.categories) for f in encoding.features), default=0)
    if many > MOST_CATEGORIES and params.max_cat_to_onehot <= many:
        log.info(
            "train: a column has %s categories, so each split is one category against the others "
            "(max_cat_to_onehot), which can be converted to ONNX",
            f"{many:,}",
        )
        params = replace(params, max_cat_to_onehot=many + 1)
    return params


def describe_rounds(metrics: Mapping[str, Any]) -> str:
    """Return the validation metrics and the best round as text."""
    shown = [f"{name} {value:.4f}" for name, value in metrics.items() if "validation" in name]
    return "  ".join([*shown, f"best round {metrics['best_round']:.0f}"])
