"""The training of boosted trees that every Ray Train worker runs."""

import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import ray.train

from millrace.models.common.arrays import Array
from millrace.models.common.hardware import peak_memory_mib
from millrace.models.inference.features import Encoding
from millrace.models.training.table_job import TRAIN, VALIDATION, Table, TableJob
from millrace.models.training.train_job import Report, Write
from millrace.tasks.kinds.gradient_boosting.boosting_params import DEPTH, ROUNDS

if TYPE_CHECKING:
    from xgboost import Booster, DMatrix

BOOSTER = "booster.ubj"
"""The trees in a checkpoint, in XGBoost's binary JSON: data, and no code."""
STATE = "state.json"
REPORT_ROUNDS = 25
READ_ROWS = 65_536


@dataclass(frozen=True)
class BoostingParams:
    """XGBoost's parameters, by the names of its scikit-learn interface.

    Attributes:
        n_estimators: the maximum number of trees; with several classes, for each class.
        early_stopping_rounds: the number of rounds without a smaller validation loss after which
            training ends. The trees up to the best round are kept. 0: training does not end early.
        learning_rate: the factor on every tree's answer.
        max_depth: the maximum depth of a tree; 0: no limit.
        subsample: the share of the rows that each tree is trained on.
        colsample_bynode: the share of the columns that each split chooses from.
        max_cat_to_onehot: a category column with fewer values is split by one value against the
            others; other category columns are split into two sets of values.
        others: further parameters, as XGBoost documents them.
    """

    n_estimators: int = ROUNDS
    early_stopping_rounds: int = 50
    learning_rate: float = 0.1
    max_depth: int = DEPTH
    subsample: float = 0.8
    colsample_bynode: float = 0.5
    max_cat_to_onehot: int = 4
    others: Mapping[str, float | int | str] = field(default_factory=dict)


@dataclass(frozen=True)
class BoostingState:
    """The progress of a training run.

    Attributes:
        round: the number of rounds done.
        best_round: the number of rounds at the smallest validation loss.
        best_loss: the smallest validation loss.
        ended: whether training is over.
    """

    round: int = 0
    best_round: int = 0
    best_loss: float = float("inf")
    ended: bool = False


@dataclass(frozen=True)
class BoostingJob(TableJob):
    """The training of boosted trees; a `TrainJob`.

    Attributes:
        table: the rows.
        encoding: the encoding of rows as arrays.
        train_rows: the number of rows in the train split, over all workers.
        params: XGBoost's parameters.
        workers: the number of workers, which share the rows.
        failures: the number of worker failures to recover from.
        seed: the random seed.
    """

    table: Table
    encoding: Encoding
    train_rows: int
    params: BoostingParams
    workers: int
    failures: int
    seed: int

    unit = "round"
    loss = "train_loss"
    advice = "lower model.params.learning_rate, or look for extreme values in the target"

    @property
    def num_workers(self) -> int:
        """The number of workers."""
        return self.workers

    @property
    def max_failures(self) -> int:
        """The number of times that workers may fail and be restarted."""
        return self.failures

    def trainer(self) -> Any:
        """Return the trainer that connects XGBoost's workers."""
        from ray.train.xgboost import XGBoostTrainer

        return XGBoostTrainer

    def run(self, start: Path | None, report: Report) -> None:
        """Train the remaining rounds, with a report every few rounds."""
        import xgboost

        booster, state = None, BoostingState()
        if start is not None:
            booster = xgboost.Booster(model_file=start / BOOSTER)
            state = BoostingState(**json.loads((start / STATE).read_text()))
        if state.ended:
            return
        context = ray.train.get_context()
        rank, world_size = context.get_world_rank(), context.get_world_size()
        threads = max(1, (os.cpu_count() or 1) // context.get_local_world_size())
        train = self._matrix(TRAIN, rank, world_size)
        validation = self._matrix(VALIDATION)
        log = _round_log(self, report, state, validation.get_label(), writes=rank == 0)
        xgboost.train(
            {**parameters_of(self.params, self.encoding), "seed": self.seed, "nthread": threads},
            train,
            num_boost_round=self.params.n_estimators - state.round,
            evals=[(train, TRAIN), (validation, VALIDATION)],
            xgb_model=booster,
            callbacks=[log],
            verbose_eval=False,
        )

    def _matrix(self, split: Any, rank: int = 0, world_size: int = 1) -> "DMatrix":
        features, targets = [np.empty((0, self.encoding.raw_width), np.float32)], []
        for rows in self.table.shard(split, rank, world_size).read(READ_ROWS):
            features.append(self.encoding.encode(rows))
            targets.append(self.encoding.encode_target(rows))
        return matrix_of(self.encoding, np.concatenate(features), np.concatenate(targets))


def parameters_of(params: BoostingParams, encoding: Encoding) -> dict[str, Any]:
    """Return XGBoost's parameters: the task's objective and metrics, and the user's choices.

    The first metric is the loss. With `seed_per_iteration` a resumed run draws the same random
    numbers as an uninterrupted one.
    """
    own = {
        name: value
        for name, value in asdict(params).items()
        if name not in ("n_estimators", "early_stopping_rounds", "others")
    }
    classes = len(encoding.labels)
    task: dict[str, Any] = {"objective": "reg:squarederror", "eval_metric": ["rmse"]}
    if classes == 2:
        task = {"objective": "binary:logistic", "eval_metric": ["logloss", "error"]}
    elif classes:
        task = {
            "objective": "multi:softprob",
            "num_class": classes,
            "eval_metric": ["mlogloss", "merror"],
        }
    return {"tree_method": "hist", "seed_per_iteration": True, **task, **own, **params.others}


def matrix_of(encoding: Encoding, features: Array, target: Array | None = None) -> "DMatrix":
    """Return encoded rows as XGBoost's matrix: NaN is a missing value, a category is its code.

    Args:
        encoding: the encoding of the rows.
        features: the encoded rows, float32 `[rows, raw_width]`.
        target: the target, `[rows]`; None if it is not known.
    """
    import xgboost

    types = [
        kind
        for feature in encoding.features
        for kind in ["c" if feature.kind == "category" else "q"] * feature.width
    ]
    return xgboost.DMatrix(features, target, feature_types=types, enable_categorical=True)


def answers_of_trees(booster: "Booster", encoding: Encoding, features: Array) -> Array:
    """Return the trees' answers, float32 `[rows, outputs]`: probabilities, or the prediction."""
    found = booster.predict(matrix_of(encoding, features))
    if len(encoding.labels) == 2:
        found = np.stack([1 - found, found], axis=1)
    return np.asarray(found, np.float32).reshape(len(features), -1)


def _round_log(
    job: BoostingJob, report: Report, state: BoostingState, target: Array, *, writes: bool
) -> Any:
    """Return the XGBoost callback that reports, stops early, and saves the best round.

    Its class is defined in this function, because its base class is from xgboost, which the driver
    need not import.
    """
    from xgboost.callback import TrainingCallback

    class RoundLog(TrainingCallback):
        def __init__(self) -> None:
            self.state, self.began_at = state, state.round
            self.since, self.rounds = time.perf_counter(), 0
            self.metrics: dict[str, float] = {}

        def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
            self.metrics = dict(_metrics(evals_log, job.encoding, target))
            loss, done = self.metrics["validation_loss"], self.state.round + 1
            self.rounds += 1
            if loss < self.state.best_loss:
                self.state = replace(self.state, best_round=done, best_loss=loss)
            self.state = replace(self.state, round=done)
            patience = job.params.early_stopping_rounds
            if patience and done - self.state.best_round >= patience:
                return True
            if done % REPORT_ROUNDS == 0 and done < job.params.n_estimators:
                self._report(model)
            return False

        def after_training(self, model: Any) -> Any:
            self.state = replace(self.state, ended=True)
            best = model[: self.state.best_round] if job.params.early_stopping_rounds else model
            self._report(best)
            return model

        def _report(self, model: Any) -> None:
            seconds = time.perf_counter() - self.since
            rate = job.train_rows * self.rounds / max(seconds, 1e-9)
            self.since, self.rounds = time.perf_counter(), 0
            progress = {"round": self.state.round, "best_round": self.state.best_round}
            speed = {
                "samples_per_second": rate,
                "began_at": self.began_at,
                "worker_memory_mib": peak_memory_mib(),
            }
            write = _writer(model, self.state) if writes else None
            report({**progress, **self.metrics, **speed}, write)

    return RoundLog()


def _writer(model: Any, state: BoostingState) -> Write:
    def write(folder: Path) -> None:
        model.save_model(folder / BOOSTER)
        (folder / STATE).write_text(json.dumps(asdict(state)))

    return write


def _metrics(
    evals_log: Mapping[str, Mapping[str, Any]], encoding: Encoding, target: Array
) -> Iterator[tuple[str, float]]:
    """Yield name and value of the loss and the task metric of both splits, after the last round."""
    spread: dict[str, float] = {
        TRAIN: encoding.target_std**2,
        VALIDATION: float(np.var(target)) or 1.0,
    }
    for split, values in evals_log.items():
        loss, *error = (float(each[-1]) for each in values.values())
        yield f"{split}_loss", loss
        if error:
            yield f"{split}_accuracy", 1 - error[0]
        else:
            yield f"{split}_r2", 1 - loss**2 / spread[split]
