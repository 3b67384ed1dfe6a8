"""Two versions on parts of the rows."""

from dataclasses import replace

import numpy as np

from millrace.models.comparison.paired_scores import PairedScores
from millrace.models.comparison.slices import NULL, OTHERS, compare_slices


def scores(slices, rows=2000, seed=0, change=0.05):
    chance = np.random.default_rng(seed)
    drawn = chance.random(rows)
    first, second = (drawn >= change).astype(float), (drawn < 1 - change).astype(float)
    return PairedScores("accuracy", first, second, np.ones(rows), slices=slices)


def texts(*values):
    return np.array([*values, None], dtype=object)[:-1]


def test_a_loss_in_one_slice_is_shown_first():
    city = texts(*(["a"] * 1000 + ["b"] * 1000))
    found = scores({"city": city}, change=0.1)
    worse = found.second.copy()
    worse[:300] = 0.0
    results = compare_slices(replace(found, second=worse))
    assert [(each.value, each.verdict) for each in results] == [
        ("a", "worse"),
        ("b", "no difference shown"),
    ]
    assert results[0].result.rows == 1000


def test_small_slices_are_flagged_and_come_last():
    city = texts(*(["few"] * 10 + ["many"] * 1990))
    found = scores({"city": city})
    bad = found.second.copy()
    bad[:10] = 0.0
    results = compare_slices(replace(found, second=bad))
    assert [(each.value, each.is_small, each.verdict) for each in results] == [
        ("many", False, "no difference shown"),
        ("few", True, "no difference shown"),
    ]


def test_of_equal_versions_few_have_a_slice_that_differs():
    chance = np.random.default_rng(1)
    called = 0
    for seed in range(400):
        columns = {name: texts(*chance.integers(0, 8, 2000)) for name in ("a", "b")}
        found = compare_slices(scores(columns, seed=seed))
        called += any(each.verdict != "no difference shown" for each in found)
    assert called <= 0.05 * 400


def test_numbers_are_cut_in_quarters_and_nulls_are_a_slice():
    values = np.arange(2000, dtype=np.float64)
    values[:100] = np.nan
    found = {each.value: each.result.rows for each in compare_slices(scores({"x": values}))}
    assert found.pop(NULL) == 100
    assert list(found.values()) == [475] * 4


def test_quarters_of_large_numbers_have_their_own_verdicts():
    values = 1.7e9 + np.arange(2000, dtype=np.float64)
    found = scores({"ts": values}, change=0.1)
    bad = found.second.copy()
    bad[:500] = 0.0
    results = compare_slices(replace(found, second=bad))
    assert len({each.value for each in results}) == 4
    assert [each.verdict for each in results] == ["worse"] + ["no difference shown"] * 3


def test_rare_values_are_one_slice():
    values = texts(*(f"v{n}" for n in range(30) for _ in range(40 if n < 20 else 20)))
    found = compare_slices(scores({"x": values}, rows=len(values)))
    assert {each.value: each.result.rows for each in found}[OTHERS] == 200
    assert len(found) == 21


def test_few_whole_numbers_and_nulls_are_values():
    values = np.array([0.0, 1.0, np.nan] * 100)
    found = compare_slices(scores({"x": values}, rows=300))
    assert sorted(each.value for each in found) == [NULL, "0", "1"]
