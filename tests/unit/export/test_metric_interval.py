import numpy as np
import pytest
from scipy import stats

from millrace.export.onnx.metric_interval import BLOCKS, interval, r2_interval
from millrace.models.comparison.live_metric import wilson
from millrace.models.families.objective import Classification, Regression

CLASSES = Classification(("no", "yes"))


def one_hot(positions: np.ndarray) -> np.ndarray:
    return np.eye(2, dtype=np.float32)[positions]


@pytest.mark.parametrize(("hits", "of"), [(38, 38), (0, 12), (1, 2), (970, 1000), (7, 300_000)])
def test_wilsons_interval_is_that_of_scipy(hits: int, of: int) -> None:
    wanted = stats.binomtest(hits, of).proportion_ci(0.95, method="wilson")
    assert wilson(hits, of) == pytest.approx((wanted.low, wanted.high), abs=1e-12)


def test_all_rows_right_is_not_certain() -> None:
    target = np.zeros(38, dtype=np.int64)
    low, high = interval(CLASSES, one_hot(target), target)
    assert low == pytest.approx(0.908, abs=1e-3)
    assert high == 1.0


@pytest.mark.parametrize("objective", [CLASSES, Regression()])
def test_one_row_has_no_interval(objective: Classification | Regression) -> None:
    assert interval(objective, np.ones((1, 2), np.float32), np.array([0])) == (None, None)


@pytest.mark.parametrize("rows", [50, BLOCKS, 20_000])
def test_r2s_interval_is_that_of_a_bootstrap_of_rows(rows: int) -> None:
    generator = np.random.default_rng(1)
    target = generator.normal(1e4, 1.0, rows)
    answers = target + generator.normal(0.0, 0.5, rows)

    def r2(of: np.ndarray) -> float:
        error = np.square(answers[of] - target[of]).sum()
        return float(1 - error / np.square(target[of] - target[of].mean()).sum())

    drawn = [r2(generator.integers(0, rows, rows)) for _ in range(2000)]
    wanted = np.quantile(drawn, (0.025, 0.975))
    found = interval(Regression(), answers[:, None].astype(np.float64), target)
    assert found == pytest.approx(wanted, abs=0.2 * (wanted[1] - wanted[0]))


def test_r2s_interval_does_not_depend_on_the_order_of_the_rows() -> None:
    generator = np.random.default_rng(1)
    target = np.sort(generator.normal(size=20_000))
    answers = target + generator.normal(0.0, 0.5, 20_000)
    mixed = generator.permutation(20_000)
    a, b = r2_interval(answers, target), r2_interval(answers[mixed], target[mixed])
    assert a == pytest.approx(b, abs=0.2 * (a[1] - a[0]))


def test_a_constant_target_has_an_r2_of_zero() -> None:
    assert r2_interval(np.zeros(10), np.full(10, 7.0)) == (0.0, 0.0)


def test_nothing_says_nothing() -> None:
    assert wilson(0, 0) == (0.0, 1.0)
