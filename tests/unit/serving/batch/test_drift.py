import numpy as np
import pyarrow as pa
import pytest
from matplotlib.colors import to_rgba

from millrace.models.data.column_statistics import ColumnStatistics, statistics_of
from millrace.models.data.schema import Column, TableSchema
from millrace.serving.batch.monitoring.batch_plots import (
    FAR,
    MOST_COLUMNS,
    WORST,
    drift_figure,
    shares_figure,
)
from millrace.serving.batch.monitoring.drift import (
    Bins,
    Drift,
    bins_of_values,
    drift_of,
    jensen_shannon,
    noise,
    psi,
)

NUMBER, CATEGORY = Column("a", "float", nullable=True), Column("a", "category", nullable=True)


def incomes(rows: int, seed: int, median: float = 10) -> pa.Array:
    return pa.array(np.random.default_rng(seed).lognormal(median, 1, size=rows))


INCOMES = incomes(5_000, seed=0)
CHILDREN = pa.array(np.random.default_rng(0).poisson(2, size=5_000))


def statistics(cells: pa.Array, column: Column) -> ColumnStatistics:
    batch = pa.record_batch({column.name: cells})
    return statistics_of(batch, TableSchema((column,), (), column.name, ()))[column.name]


def bins_of(cells: pa.Array, column: Column = NUMBER) -> Bins:
    bins = Bins.of(column, statistics(cells.cast(column.arrow), column))
    assert bins is not None
    return bins


def words(**counts: int) -> pa.Array:
    return pa.array([word for word, count in counts.items() for _ in range(count)])


def test_numbers_are_cut_in_about_tenths() -> None:
    bins = bins_of(pa.array(np.random.default_rng(0).normal(size=20_000)))
    assert bins.expected[:-1] == pytest.approx(0.1, abs=0.06)
    assert len(bins.counts) == 11


@pytest.mark.parametrize("cells", [INCOMES, CHILDREN, pa.array([3.0] * 9), pa.array([0, 0, 0, 7])])
def test_the_training_rows_are_counted_as_expected(cells: pa.Array) -> None:
    bins = bins_of(cells)
    assert tuple(bins.count(cells)) == bins.counts


def test_deciles_at_one_edge_are_one() -> None:
    bins = bins_of(pa.array([0.0] * 95 + [1.0, 2.0, 3.0, 4.0, 5.0]))
    assert bins.counts == (95, 5, 0)


def test_the_bins_of_numbers_are_open_at_both_ends() -> None:
    bins = bins_of(INCOMES)
    counts = bins.count(pa.array([-np.inf, -1e300, 1e300, np.inf]))
    assert (counts[0], counts[-2]) == (2, 2)


def test_the_bins_of_whole_numbers_begin_at_whole_numbers() -> None:
    bins = bins_of(CHILDREN, Column("a", "int"))
    assert bins.edges == (1, 2, 3, 4)
    assert tuple(bins.count(CHILDREN)) == bins.counts


def test_what_differs_from_a_constant_is_told_from_it() -> None:
    bins = bins_of(pa.array([3.0] * 9))
    assert bins.count(pa.array([2.9, 3.0, 3.1])).tolist() == [1, 1, 1, 0]


@pytest.mark.parametrize("column", [NUMBER, CATEGORY])
def test_nulls_have_a_bin_of_their_own(column: Column) -> None:
    cells = pa.array([None, "1", "2"] if column is CATEGORY else [None, 1.0, 2.0])
    assert bins_of(cells, column).counts[-1] == 1


def test_nan_is_null() -> None:
    assert bins_of(INCOMES).count(pa.array([float("nan"), None, 1.0]))[-1] == 2


def test_a_column_that_was_always_null_is_compared() -> None:
    bins = bins_of(pa.nulls(5, pa.float64()))
    assert bins.count(pa.array([None, 1.0])).tolist() == [1, 1]


def test_the_fifty_most_frequent_values_have_bins_and_all_others_share_one() -> None:
    cells = pa.array([f"{value:02}" for value in range(60) for _ in range(value + 1)])
    bins = bins_of(cells, CATEGORY)
    assert bins.values == tuple(f"{value:02}" for value in range(59, 9, -1))
    assert bins.counts[-2:] == (sum(range(1, 11)), 0)


def test_a_value_never_seen_is_other() -> None:
    assert bins_of(words(x=2, y=1), CATEGORY).count(words(z=3, x=1)).tolist() == [1, 0, 3, 0]


def test_cells_that_come_as_text_are_read_as_ingestion_reads_them() -> None:
    bins = bins_of(pa.array([True, False, True]), Column("a", "bool"))
    assert bins.count(pa.array(["yes", "0", "", "TRUE"])).tolist() == [2, 1, 0, 1]


def test_codes_are_categories() -> None:
    bins = bins_of(pa.array([7, 7, 9]), Column("a", "category", values="int"))
    assert bins.count(pa.array([9.0, 7.0, 8.0])).tolist() == [1, 1, 1, 0]


def test_cells_in_a_dictionary_are_counted() -> None:
    bins = bins_of(words(x=2, y=1), CATEGORY)
    assert bins.count(words(y=4).dictionary_encode()).tolist() == [0, 4, 0, 0]


def test_no_cells_are_no_counts() -> None:
    assert bins_of(INCOMES).count(pa.array([], pa.float64())).sum() == 0


@pytest.mark.parametrize("column_type", ["text", "string", "messages", "vector"])
def test_text_and_vectors_are_not_compared(column_type: str) -> None:
    assert Bins.of(Column("a", column_type), ColumnStatistics(rows=9)) is None


def test_a_snapshot_without_rows_is_not_compared() -> None:
    assert Bins.of(NUMBER, ColumnStatistics()) is None


@pytest.mark.parametrize(("cells", "column"), [(INCOMES, NUMBER), (words(x=9, y=3), CATEGORY)])
def test_counts_of_batches_add_up(cells: pa.Array, column: Column) -> None:
    bins = bins_of(cells, column)
    parts = [cells.slice(0, 5), cells.slice(5)]
    assert sum(bins.count(part) for part in parts).tolist() == bins.count(cells).tolist()


def test_every_bin_has_a_label() -> None:
    for bins in (bins_of(INCOMES), bins_of(words(x=2), CATEGORY), bins_of(pa.nulls(2, pa.int64()))):
        assert len(bins.labels) == len(bins.counts)


def test_a_sample_of_numbers_is_cut_in_tenths() -> None:
    assert bins_of_values("length", pa.array(range(1000))).expected[:-1] == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (pa.array([1, 2]), "number"),
        (pa.array([1.0, None]), "number"),
        (pa.array(["x", None]), "string"),
        (pa.array([True]), "bool"),
        (pa.nulls(2, pa.float64()), "number"),
    ],
)
def test_a_sample_is_read_by_its_type(values: pa.Array, kind: str) -> None:
    bins = bins_of_values("prediction", values)
    assert (bins.kind, tuple(bins.count(values))) == (kind, bins.counts)


def test_the_codes_of_classes_are_categories() -> None:
    assert bins_of_values("prediction", pa.array([4, 4, 2]), codes=True).values == (4, 2)


def test_psi_is_that_of_the_formula() -> None:
    expected, seen = np.array([0.5, 0.5]), np.array([0.9, 0.1])
    assert psi(expected, seen) == pytest.approx(0.4 * np.log(1.8) - 0.4 * np.log(0.2))


def test_psi_is_finite_where_a_bin_is_empty() -> None:
    assert 0 < psi(np.array([1.0, 0.0]), np.array([0.0, 1.0])) < 20


@pytest.mark.parametrize(("seen", "bits"), [([0.5, 0.5, 0.0], 0.0), ([0.0, 0.0, 1.0], 1.0)])
def test_jensen_shannon_goes_from_nothing_to_one_bit(seen: list[float], bits: float) -> None:
    assert jensen_shannon(np.array([0.5, 0.5, 0.0]), np.array(seen)) == pytest.approx(bits)


def test_the_training_rows_have_no_drift_from_themselves() -> None:
    bins = bins_of(INCOMES)
    drift = drift_of(bins, bins.count(INCOMES))
    assert (drift.psi, drift.jensen_shannon) == (0, 0)


def test_noise_is_the_mean_of_what_chance_gives() -> None:
    bins = bins_of(INCOMES)
    samples = [incomes(500, seed) for seed in range(1, 201)]
    found = [drift_of(bins, bins.count(sample)) for sample in samples]
    assert np.mean([drift.psi for drift in found]) == pytest.approx(found[0].noise, rel=0.25)


def test_noise_counts_only_bins_that_hold_rows() -> None:
    bins = bins_of(words(x=60, y=40), CATEGORY)
    assert drift_of(bins, bins.count(words(x=6, y=4))).noise == noise(2, 100, 10)


@pytest.mark.parametrize("rows", [5, 10, 20, 50, 200])
def test_a_small_batch_seldom_cries_wolf(rows: int) -> None:
    bins = bins_of(INCOMES)
    samples = [incomes(rows, seed) for seed in range(1, 201)]
    found = [drift_of(bins, bins.count(sample)).exceeds(0.25) for sample in samples]
    assert np.mean(found) < 0.15


@pytest.mark.parametrize("rows", [50, 5_000])
def test_rows_from_elsewhere_exceed_the_limit(rows: int) -> None:
    bins = bins_of(INCOMES)
    moved = incomes(rows, seed=1, median=11)
    assert drift_of(bins, bins.count(moved)).exceeds(0.25)


def test_values_that_go_missing_exceed_the_limit() -> None:
    bins = bins_of(INCOMES)
    assert drift_of(bins, bins.count(pa.nulls(20, pa.float64()))).exceeds(0.25)


def test_no_rows_are_no_drift() -> None:
    bins = bins_of(INCOMES)
    assert drift_of(bins, np.zeros(len(bins.counts), np.int64)) == Drift("a", 0, 0, 0, 0)


def test_a_bar_is_red_where_the_column_exceeds_the_limit() -> None:
    drifts = [Drift("near", 0.5, 0.1, 0.4, 20), Drift("far", 0.5, 0.1, 0.1, 20)]
    axes = drift_figure(drifts, limit=0.25).axes[0]
    red = [bar.get_facecolor() == to_rgba(FAR) for bar in axes.patches]
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert list(zip(names, red, strict=True)) == [("far", True), ("near", False)]


def test_the_farthest_columns_are_drawn() -> None:
    drifts = [Drift(str(number), number / 10, 0.0, 0.0, 9) for number in range(40)]
    assert len(drift_figure(drifts, limit=0.25).axes[0].patches) == MOST_COLUMNS


def test_shares_are_drawn_of_the_worst_columns() -> None:
    bins = bins_of(INCOMES)
    assert len(shares_figure([(bins, bins.count(INCOMES))] * 9).axes) == WORST


def test_a_picture_of_no_columns_can_be_drawn() -> None:
    for figure in (drift_figure([], limit=0.25), shares_figure([])):
        figure.draw_without_rendering()
