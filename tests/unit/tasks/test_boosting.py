"""Boosted trees: their parameters, and their ONNX graph against XGBoost's own answers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xgboost
from pydantic import ValidationError
from sklearn import datasets
from sklearn.model_selection import train_test_split

from millrace.models.common.errors import InputError
from millrace.models.config.pipeline import Pipeline
from millrace.models.inference.answers import answers_of
from millrace.models.inference.features import Encoding, Feature
from millrace.models.inference.onnx_session import OnnxSession
from millrace.tasks.kinds.gradient_boosting import boosting_onnx
from millrace.tasks.kinds.gradient_boosting.boosting_job import (
    BoostingParams,
    answers_of_trees,
    matrix_of,
    parameters_of,
)
from millrace.tasks.kinds.gradient_boosting.boosting_onnx import convert_trees, number_nodes
from millrace.tasks.kinds.gradient_boosting.boosting_plots import importance_picture
from millrace.tasks.kinds.gradient_boosting.boosting_report import importance_of
from millrace.tasks.kinds.gradient_boosting.boosting_train import MOST_CATEGORIES, params_of

ROUNDS = 12
TASKS: dict[str, tuple[int | str, ...]] = {
    "regression": (),
    "two classes": ("no", "yes"),
    "four classes": (0, 1, 2, 3),
}


def encoding_of(categories: int, labels: tuple[int | str, ...]) -> Encoding:
    return Encoding(
        (
            Feature("a", "number", nullable=True),
            Feature("v", "vector", width=2),
            Feature("c", "category", categories=tuple(map(str, range(categories))), nullable=True),
        ),
        "t",
        labels,
        target_std=100.0,
    )


def rows_of(categories: int, rows: int = 3000) -> tuple[np.ndarray, np.ndarray]:
    """Return features with missing numbers and categories, and what is to be learnt."""
    drawn = np.random.default_rng(categories)
    numbers = drawn.normal(size=(rows, 3)).astype(np.float32)
    codes = drawn.integers(categories, size=rows)
    effect = drawn.normal(size=categories)[codes]
    answer = effect * (1 + numbers[:, 1]) + numbers[:, 0]
    features = np.concatenate([numbers, codes[:, None]], axis=1).astype(np.float32)
    features[drawn.random(rows) < 0.1, 0] = np.nan
    features[drawn.random(rows) < 0.1, 3] = np.nan  # missing, or not seen in training
    return features, answer


def target_of(answer: np.ndarray, labels: tuple[int | str, ...]) -> np.ndarray:
    if not labels:
        return np.asarray(100 * answer, np.float32)
    ends = np.quantile(answer, np.arange(1, len(labels)) / len(labels))
    return np.asarray(np.digitize(answer, ends), np.int64)


@pytest.mark.parametrize("labels", TASKS.values(), ids=TASKS)
@pytest.mark.parametrize("categories", [2, 50, 5000])
def test_the_graph_answers_as_xgboost_does(
    tmp_path: Path, categories: int, labels: tuple[int | str, ...]
) -> None:
    encoding = encoding_of(categories, labels)
    features, answer = rows_of(categories)
    params = parameters_of(params_of({"learning_rate": 0.5}, encoding), encoding)
    matrix = matrix_of(encoding, features, target_of(answer, labels))
    booster = xgboost.train({**params, "nthread": 1}, matrix, ROUNDS)
    booster.save_model(tmp_path / "booster.ubj")
    output = answers_of(encoding).output
    convert_trees(tmp_path / "booster.ubj", tmp_path / "model.onnx", 4, output)
    features[:100, 3] = np.nan
    wanted = answers_of_trees(booster, encoding, features)
    found = OnnxSession(tmp_path / "model.onnx").answer(features)
    assert wanted.shape == (len(features), max(len(labels), 1))
    assert np.abs(found - wanted).max() <= 1e-5 * np.ptp(wanted)
    assert np.ptp(wanted) > 0.5


def trees_with_sets(path: Path, rounds: int) -> tuple[xgboost.Booster, Encoding, np.ndarray]:
    encoding = encoding_of(MOST_CATEGORIES, ())
    features, answer = rows_of(MOST_CATEGORIES)
    params = {**parameters_of(params_of({}, encoding), encoding), "nthread": 1}
    booster = xgboost.train(params, matrix_of(encoding, features, target_of(answer, ())), rounds)
    booster.save_model(path)
    return booster, encoding, features


def test_sets_of_many_categories_are_converted(tmp_path: Path) -> None:
    booster, encoding, features = trees_with_sets(tmp_path / "booster.ubj", 20)
    convert_trees(tmp_path / "booster.ubj", tmp_path / "model.onnx", 4, "prediction")
    wanted = answers_of_trees(booster, encoding, features)
    found = OnnxSession(tmp_path / "model.onnx").answer(features)
    assert np.abs(found - wanted).max() <= 1e-5 * np.ptp(wanted)


def test_a_branch_that_many_nodes_share_is_numbered_once() -> None:
    node = {"nodeid": 0}
    for level in range(1, 200):
        node = {"nodeid": level, "children": [node, node]}
    assert number_nodes(node) == {level: 199 - level for level in range(200)}
    left, right = {"nodeid": 7}, {"nodeid": 4, "children": [{"nodeid": 5}, {"nodeid": 6}]}
    tree = {"nodeid": 9, "children": [left, right]}
    assert number_nodes(tree) == {9: 0, 7: 1, 4: 2, 5: 3, 6: 4}


def test_trees_that_cannot_be_converted_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trees_with_sets(tmp_path / "booster.ubj", 1)
    monkeypatch.setattr(boosting_onnx, "number_nodes", lambda root: {})
    with pytest.raises(Exception, match="onnxmltools cannot convert the trees") as caught:
        convert_trees(tmp_path / "booster.ubj", tmp_path / "model.onnx", 4, "prediction")
    assert "max_cat_to_onehot" in str(caught.value)


@pytest.mark.parametrize(
    ("categories", "given", "one_hot"),
    [
        (MOST_CATEGORIES, {}, 4),
        (MOST_CATEGORIES + 1, {}, MOST_CATEGORIES + 2),
        (5000, {"max_cat_to_onehot": 9000}, 9000),
        (3, {"max_cat_to_onehot": 8}, 8),
    ],
)
def test_many_categories_are_split_one_against_the_others(
    categories: int, given: dict[str, Any], one_hot: int
) -> None:
    assert params_of(given, encoding_of(categories, ())).max_cat_to_onehot == one_hot


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"n_estimator": 5}, "did you mean 'n_estimators'"),
        ({"objective": "count:poisson"}, "not a parameter of the family"),
        ({"n_estimators": "many"}, "an integer"),
        ({"n_estimators": 2.5}, "an integer"),
        ({"subsample": True}, "a number"),
        ({"subsample": 0}, "above 0 and at most 1"),
        ({"n_estimators": 0}, "an integer, 1 or more"),
        ({"max_depth": -1}, "an integer, 0 or more"),
        ({"learning_rate": float("nan")}, "above 0 and at most 1"),
        ({"reg_lambda": float("inf")}, "a number, 0 or more"),
        ({"grow_policy": "foo"}, "depthwise or lossguide"),
    ],
)
def test_a_parameter_that_does_not_fit_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        params_of(given, encoding_of(2, ()))


def test_other_parameters_reach_xgboost() -> None:
    encoding = encoding_of(2, ("no", "yes"))
    found = parameters_of(params_of({"subsample": 1, "max_depth": 3}, encoding), encoding)
    assert (found["subsample"], found["max_depth"]) == (1, 3)
    assert found["objective"] == "binary:logistic"
    assert "n_estimators" not in found


@pytest.mark.parametrize(
    ("part", "values", "said"),
    [
        ("training", {"epochs": 3}, "n_estimators"),
        ("training", {"learning_rate": 0.1}, "model.params"),
        ("training", {"pruning": {}}, "training.pruning"),
        ("export", {"candidates": ["onnx-int8-static"]}, "no variant onnx-int8-static"),
        ("model", {"pretrained": "a/b"}, "model.pretrained"),
    ],
)
def test_keys_of_networks_are_refused(part: str, values: dict[str, Any], said: str) -> None:
    rest = {"name": "m", "dataset": {"source": "r.csv", "target": "y"}}
    model = {"family": "gradient_boosting", **(values if part == "model" else {})}
    with pytest.raises(ValidationError, match=said):
        Pipeline.model_validate({**rest, part: values, "model": model})


def test_importance_is_by_column_and_sums_to_one() -> None:
    encoding = encoding_of(50, ())
    features, answer = rows_of(50)
    params = {**parameters_of(BoostingParams(), encoding), "nthread": 1}
    booster = xgboost.train(params, matrix_of(encoding, features, target_of(answer, ())), ROUNDS)
    found = importance_of(booster, encoding)
    assert set(found) == {"a", "v", "c"}
    assert sum(found.values()) == pytest.approx(1.0)
    assert list(found.values()) == sorted(found.values(), reverse=True)
    assert importance_picture(found).axes[0].get_xlabel() == "share of the total gain"


@pytest.mark.parametrize("name", ["breast_cancer", "wine", "diabetes"])
def test_the_defaults_are_as_good_as_those_of_xgboost(name: str) -> None:
    """On three of scikit-learn's tables, over ten splits of each.

    One of 171 test rows is 0.006. Over 60 splits of breast_cancer they differ by 0.001.
    """
    table = getattr(datasets, f"load_{name}")()
    labels = () if name == "diabetes" else tuple(map(str, table.target_names))
    encoding = Encoding(
        tuple(Feature(each, "number") for each in map(str, range(table.data.shape[1]))), "t", labels
    )
    own, plain = zip(*(metrics_of(table, encoding, seed) for seed in range(10)), strict=True)
    assert np.mean(own) >= np.mean(plain) - 0.01


def metrics_of(table: Any, encoding: Encoding, seed: int) -> tuple[float, float]:
    """Return the test metric of our defaults, and of XGBoost's without early stopping."""
    rows = table.data.astype(np.float32)
    rest, test, of_rest, of_test = train_test_split(
        rows, table.target, test_size=0.3, random_state=seed
    )
    train, held, of_train, of_held = train_test_split(
        rest, of_rest, test_size=1 / 7, random_state=seed
    )
    params = BoostingParams()
    task = {**parameters_of(params, encoding), "nthread": 1}
    matrix, validation = matrix_of(encoding, train, of_train), matrix_of(encoding, held, of_held)
    task["eval_metric"] = task["eval_metric"][:1]
    own = xgboost.train(
        task,
        matrix,
        params.n_estimators,
        evals=[(validation, "validation")],
        early_stopping_rounds=params.early_stopping_rounds,
        verbose_eval=False,
    )
    own = own[: own.best_iteration + 1]
    names = ("objective", "num_class", "nthread")
    plain = xgboost.train({n: task[n] for n in names if n in task}, matrix, 100)
    meaning = answers_of(encoding)
    found = [
        meaning.metric_of_answers(answers_of_trees(each, encoding, test), of_test)
        for each in (own, plain)
    ]
    return found[0], found[1]
