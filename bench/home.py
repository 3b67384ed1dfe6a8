"""An embedded installation of the benchmark's own, and rows to train on."""

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from millrace.models.common.installation import Installation

WIDTH, CLASSES = 64, 10


@contextmanager
def own_home() -> Iterator[Installation]:
    """Create a temporary `MILLRACE_HOME`, whatever services the environment names.

    Enter it before Ray, MLflow or Prefect is imported; the process keeps the settings.

    Raises:
        RuntimeError: one of the three is imported already. Ray would start without its token.
    """
    if early := {"ray", "mlflow", "prefect"} & sys.modules.keys():
        raise RuntimeError(f"imported before the settings: {', '.join(sorted(early))}")
    from millrace.flows import settings, tool_variables

    for name in settings.variables():
        os.environ.pop(name, None)
    # Prefect's embedded server may still write while it is stopped at the end of this process.
    with tempfile.TemporaryDirectory(prefix="millrace-bench-", ignore_cleanup_errors=True) as home:
        os.environ["MILLRACE_HOME"] = str(Path(home).resolve())
        yield tool_variables.apply(settings.load()).installation()


def write_rows(file: Path, rows: int) -> None:
    """Write a Parquet file of vectors around the centres of ten classes.

    Args:
        file: with the columns `x`, a list of 64 floats, and `y`, 0 to 9.
        rows: how many.
    """
    generator = np.random.default_rng(0)
    centres = generator.normal(size=(CLASSES, WIDTH))
    target = generator.integers(0, CLASSES, rows)
    vectors = (centres[target] + generator.normal(size=(rows, WIDTH))).astype(np.float32)
    table = pa.table({"x": pa.array(list(vectors)), "y": pa.array(target)})
    pq.write_table(table, file)
