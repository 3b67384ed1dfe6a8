import json
from functools import reduce

import numpy as np
import pyarrow as pa
import pytest

from millrace.models.data.column_statistics import MAX_BINS, ColumnStatistics, merge, statistics_of
from millrace.models.data.schema import Column, TableSchema

NUMBER = TableSchema((Column("a", "float", nullable=True),), (), "a", ())


def gather(batches: list[pa.RecordBatch], schema: TableSchema) -> dict[str, ColumnStatistics]:
    return reduce(merge, (statistics_of(batch, schema) for batch in batches), {})


def numbers_of(*parts: list[float | None]) -> ColumnStatistics:
    batches = [pa.record_batch({"a": pa.array(part, pa.float64())}) for part in parts]
    return gather(batches, NUMBER)["a"]


def test_moments_are_those_of_all_rows() -> None:
    values = np.random.default_rng(0).normal(1e6, 3, size=10_000)
    found = numbers_of(*(list(part) for part in np.array_split(values, 7)))
    assert found.numbers is not None
    assert found.numbers.mean == pytest.approx(values.mean(), rel=1e-12)
    assert found.numbers.std == pytest.approx(values.std(), rel=1e-9)
    assert (found.numbers.min, found.numbers.max) == (values.min(), values.max())


def test_a_histogram_counts_every_value_in_its_bin() -> None:
    values = np.random.default_rng(0).exponential(size=5_000)
    found = numbers_of(*(list(part) for part in np.array_split(values, 5))).numbers
    assert found is not None
    assert MAX_BINS / 2 - 1 <= len(found.histogram.counts) <= MAX_BINS
    expected, _ = np.histogram(values, bins=np.array(found.histogram.edges))
    assert list(found.histogram.counts) == expected.tolist()


@pytest.mark.parametrize(
    "values", [[0.0] * 4, [0.1, 0.1], [-5.0, 5.0], [1e-300, 1e300], [-3.5], [1e15, 1e15 + 1]]
)
def test_statistics_do_not_depend_on_order_or_batches(values: list[float]) -> None:
    parts = [[value] for value in values]
    forth, back = numbers_of(*parts).numbers, numbers_of(*parts[::-1]).numbers
    assert forth is not None
    assert back is not None
    assert forth.histogram == back.histogram
    assert sum(forth.histogram.counts) == len(values)
    whole = numbers_of(values).numbers
    assert whole is not None
    assert whole.histogram.exponent == forth.histogram.exponent


def test_nulls_are_counted_and_left_out() -> None:
    found = numbers_of([1.0, None], [None], [3.0])
    assert (found.rows, found.nulls) == (4, 2)
    assert found.numbers is not None
    assert found.numbers.mean == 2


def test_a_vector_counts_its_elements_and_a_category_its_values() -> None:
    schema = TableSchema((Column("v", "vector", width=2), Column("t", "category")), (), "t", ("v",))
    vectors = pa.array([[1.0, 2.0], [3.0, 4.0]], pa.list_(pa.float32()))
    batch = pa.record_batch({"v": vectors, "t": ["y", "x"]})
    found = gather([batch, batch], schema)
    assert found["v"].numbers is not None
    assert found["v"].numbers.count == 8
    assert found["t"].counts == (("x", 2), ("y", 2))


def test_statistics_survive_json() -> None:
    found = numbers_of([1.0, 2.0, None])
    assert ColumnStatistics.from_json(json.loads(json.dumps(found.as_json()))) == found
