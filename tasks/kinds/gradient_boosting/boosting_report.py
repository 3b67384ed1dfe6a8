"""The report on boosted trees: the report of the kind `graph`, and the importance of columns."""

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import xgboost

from millrace.models.config.pipeline import Pipeline
from millrace.models.data.snapshots import Snapshot
from millrace.models.inference.features import Encoding
from millrace.tasks.kinds.graph.graph_report import report_graph
from millrace.tasks.kinds.graph.graph_train import GraphTraining
from millrace.tasks.kinds.steps import Exported, KindReport, Trained

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_COLUMNS = 20


def report_trees(
    pipeline: Pipeline, snapshot: Snapshot, trained: Trained[GraphTraining], exported: Exported
) -> KindReport:
    """Return the report on a training run."""
    shown = report_graph(pipeline, snapshot, trained, exported)
    booster = xgboost.Booster(model_file=trained.weights)
    importance = importance_of(booster, trained.details.encoding)
    picture = {"plots/feature_importance.png": importance_picture(importance)}
    rounds = booster.num_boosted_rounds()
    return replace(
        shown,
        metrics={**shown.metrics, "best_round": float(rounds)},
        figures={**shown.figures, **picture},
        rows=(*shown.rows[:1], ("trees", f"{rounds:,} rounds"), *shown.rows[1:]),
    )


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


def importance_picture(importance: dict[str, float]) -> "Figure":
    """Draw the most important columns, the largest at the top."""
    from matplotlib.figure import Figure

    shown = list(importance.items())[:MOST_COLUMNS][::-1]
    figure = Figure(figsize=(7, 1.2 + 0.3 * len(shown)), layout="constrained")
    axes = figure.subplots()
    axes.barh([name[:40] for name, _ in shown], [share for _, share in shown], color="C0")
    axes.xaxis.set_major_formatter("{x:.0%}")
    axes.set_xlabel("share of the total gain")
    left = len(importance) - len(shown)
    axes.set_title("feature importance" + (f", {left} more columns below" if left > 0 else ""))
    axes.grid(axis="x", alpha=0.3)
    return figure
