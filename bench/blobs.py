"""A data set to learn from: random vectors around the centres of ten classes."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

WIDTH, CLASSES = 64, 10


def write_rows(file: Path, rows: int) -> None:
    """Write a Parquet file of `x`, a list of 64 floats, and `y`, 0 to 9."""
    generator = np.random.default_rng(0)
    centres = generator.normal(size=(CLASSES, WIDTH))
    target = generator.integers(0, CLASSES, rows)
    vectors = (centres[target] + generator.normal(size=(rows, WIDTH))).astype(np.float32)
    table = pa.table({"x": pa.array(list(vectors)), "y": pa.array(target)})
    pq.write_table(table, file)
