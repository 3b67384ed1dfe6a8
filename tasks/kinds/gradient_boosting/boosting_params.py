"""XGBoost's parameters in a pipeline file's `model.params`, and their valid values."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from millrace.models.common.errors import InputError, nearest

ROUNDS, DEPTH = 1000, 6
"""Default of `n_estimators` and of `max_depth`."""
GROW_POLICIES = ("depthwise", "lossguide")


@dataclass(frozen=True)
class Numbers:
    """The valid numbers of a parameter.

    Attributes:
        least: the lower limit, which is itself valid unless `above` is true.
        most: the largest valid number.
        above: whether `least` itself is too small.
        whole: whether only integers are valid.
    """

    least: float = 0
    most: float = math.inf
    above: bool = False
    whole: bool = False

    def accepts(self, value: Any) -> bool:
        """Return whether a value of a pipeline file is valid."""
        is_number = isinstance(value, int if self.whole else (int, float))
        if not is_number or isinstance(value, bool) or not math.isfinite(value):
            return False
        enough = value > self.least if self.above else value >= self.least
        return bool(enough and value <= self.most)

    def __str__(self) -> str:
        """Return the valid numbers as text."""
        least = f"above {self.least:g}" if self.above else f"{self.least:g} or more"
        most = f" and at most {self.most:g}" if self.most < math.inf else ""
        return f"{'an integer' if self.whole else 'a number'}, {least}{most}"


COUNT = Numbers(1, whole=True)
LIMIT = Numbers(0, whole=True)
AMOUNT = Numbers(0)
SHARE = Numbers(0, 1, above=True)
PARAMS: Mapping[str, Numbers] = {
    "n_estimators": COUNT,
    "early_stopping_rounds": LIMIT,
    "learning_rate": SHARE,
    "max_depth": LIMIT,
    "max_leaves": LIMIT,
    "max_bin": Numbers(2, whole=True),
    "gamma": AMOUNT,
    "min_child_weight": AMOUNT,
    "max_delta_step": AMOUNT,
    "subsample": SHARE,
    "colsample_bytree": SHARE,
    "colsample_bylevel": SHARE,
    "colsample_bynode": SHARE,
    "reg_alpha": AMOUNT,
    "reg_lambda": AMOUNT,
    "scale_pos_weight": Numbers(0, above=True),
    "num_parallel_tree": COUNT,
    "max_cat_to_onehot": COUNT,
    "max_cat_threshold": COUNT,
}
"""The numeric parameters that `model.params` may set; `grow_policy` is the only other one."""


def check_params(given: Mapping[str, Any]) -> None:
    """Check `model.params`.

    Raises:
        InputError: a parameter is unknown, or its value is not valid.
    """
    names = [*PARAMS, "grow_policy"]
    for name, value in given.items():
        if name not in names:
            raise InputError(
                f"model.params.{name} is not a parameter of the family gradient_boosting",
                seen=name,
                valid=", ".join(names),
                hint=nearest(name, names),
            )
        is_valid = value in GROW_POLICIES if name == "grow_policy" else PARAMS[name].accepts(value)
        if not is_valid:
            raise InputError(
                f"model.params.{name} has a value that is not valid",
                seen=repr(value),
                valid=str(PARAMS.get(name, " or ".join(GROW_POLICIES))),
            )
