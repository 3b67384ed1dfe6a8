"""The report on boosted trees: the report of the kind `graph`, and the importance of columns."""

from dataclasses import replace
from functools import partial

import numpy as np
import xgboost

from millrace.models.config.pipeline import Pipeline
from millrace.models.data.snapshots import Snapshot
from millrace.models.inference.features import Encoding
from millrace.tasks.kinds.gradient_boosting.boosting_plots import importance_picture
from millrace.tasks.kinds.graph.graph_report import draw_training, report_graph
from millrace.tasks.kinds.graph.graph_train import GraphTraining
from millrace.tasks.kinds.steps import Exported, KindReport, Trained
from millrace.tasks.reports.drawing import Draw


def report_trees(
    pipeline: Pipeline, snapshot: Snapshot, trained: Trained[GraphTraining], exported: Exported
) -> KindReport:
    """Return the report on a training run."""
    shown = report_graph(pipeline, snapshot, trained, exported)
    rounds = xgboost.Booster(model_file=trained.weights).num_boosted_rounds()
    return replace(
        shown,
        metrics={**shown.metrics, "best_round": float(rounds)},
        rows=(*shown.rows[:1], ("trees", f"{rounds:,} rounds"), *shown.rows[1:]),
    )


def draw_trees(trained: Trained[GraphTraining]) -> dict[str, Draw]:
    """Return what draws the pictures of the training, by artifact path."""
    booster = xgboost.Booster(model_file=trained.weights)
    importance = importance_of(booster, trained.details.encoding)
    picture = partial(importance_picture, importance)
    return {**draw_training(trained), "plots/feature_importance.png": picture}


def importance_of(booster: xgboost.Booster, encoding: Encoding) -> dict[str, float]:
    """Return each column's share of the total loss reduction by splits, the largest first.

    This is XGBoost's `total_gain`. The gains of a vector column's elements are added up. A column
    that no tree uses is left out.
    """
    names = [feature.name for feature in encoding.features for _ in range(feature.width)]
    gains = dict.fromkeys(names, 0.0)
    for place, gain in booster.get_score(importance_type="total_gain").items():
        gains[names[int(place.removeprefix("f"))]] += float(np.sum(gain))
    total = sum(gains.values()) or 1.0
    ordered = sorted(gains, key=lambda name: -gains[name])
    return {name: gains[name] / total for name in ordered if gains[name] > 0}
