"""Weights of terms: what the fit finds, and what its interval holds."""

import math

import numpy as np
import pytest

from millrace.models.planner.fit import Fit, cross_validated, fit_terms, interval_of


def rows_of(count, seed=0, noise=0.0):
    chance = np.random.default_rng(seed)
    rows = [{"a": a, "b": b} for a, b in chance.uniform(0.1, 5, (count, 2))]
    times = [
        (2 * row["a"] + 0.5 * row["b"]) * math.exp(noise * e)
        for row, e in zip(rows, chance.normal(size=count), strict=True)
    ]
    return rows, times


def test_exact_times_give_their_weights():
    fit = fit_terms(*rows_of(20), ("a", "b"))
    assert fit.weights == pytest.approx({"a": 2, "b": 0.5})
    assert (fit.low, fit.high) == pytest.approx((1, 1), abs=1e-6)


def test_a_weight_is_never_negative():
    rows, times = rows_of(20)
    fit = fit_terms([{**row, "c": -row["a"]} for row in rows], times, ("a", "b", "c"))
    assert min(fit.weights.values()) >= 0


def test_short_and_long_times_count_alike():
    rows = [{"a": 1.0}, {"a": 1000.0}]
    fit = fit_terms(rows, [2.0, 4000.0], ("a",))
    # 2.4 is 20% too much and 40% too little; 4, which a sum of squares of seconds gives, is 100%
    assert fit.weights["a"] == pytest.approx(2.4)


def test_a_robust_fit_ignores_a_row_that_took_far_too_long():
    rows, times = rows_of(20)
    times[3] *= 5
    plain = fit_terms(rows, times, ("a", "b"))
    robust = fit_terms(rows, times, ("a", "b"), robust=True)
    assert robust.weights["a"] == pytest.approx(2, rel=0.005)
    assert abs(plain.weights["a"] - 2) > 5 * abs(robust.weights["a"] - 2)


@pytest.mark.parametrize("count", [10, 80])
def test_the_interval_holds_nine_of_ten_new_measurements(count):
    held = 0
    for seed in range(40):
        fit = fit_terms(*rows_of(count, seed, noise=0.2), ("a", "b"))
        new, times = rows_of(50, 1000 + seed, noise=0.2)
        pairs = zip(new, times, strict=True)
        held += sum(fit.estimate(row).holds(time) for row, time in pairs)
    assert 0.86 < held / 2000 < 0.95


def test_a_group_is_held_out_as_a_whole():
    rows, times = rows_of(12)
    doubled = [time * (2 if n < 4 else 1) for n, time in enumerate(times)]
    groups = ["new" if n < 4 else n for n in range(12)]
    ratios = cross_validated(rows, doubled, ("a", "b"), groups=groups)
    assert [ratios[n] for n in range(4)] == pytest.approx([2] * 4)


def test_one_measurement_gives_no_interval():
    assert interval_of([1.3]) == (0.0, math.inf)


def test_an_estimate_outside_of_the_fitted_region_says_so():
    fit = Fit({"a": 2.0}, 0.8, 1.25, 9, {"batch": (1, 64)})
    estimate = fit.estimate({"a": 3.0}, {"batch": 65})
    assert (estimate.value, estimate.low, estimate.high) == pytest.approx((6, 4.8, 7.5))
    assert estimate.extrapolated == ("batch 65 is outside of 1 to 64",)
    assert fit.estimate({"a": 3.0}, {"batch": 64}).extrapolated == ()


def test_a_counted_term_has_a_weight_of_at_least_one():
    rows = [{"base": 100.0, "counted": n} for n in (1.0, 2.0, 3.0, 4.0)]
    measured = [150.0, 149.0, 151.0, 150.0]
    free = fit_terms(rows, measured, ("base", "counted"))
    bounded = fit_terms(rows, measured, ("base", "counted"), bounds={"counted": (1.0, math.inf)})
    assert free.weights["counted"] < 1
    assert bounded.weights["counted"] == pytest.approx(1)
    assert bounded.weights["base"] == pytest.approx(1.475, rel=0.01)
