"""Sources in Python: scikit-learn's bundled data sets, and the user's own function."""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import csv

from millrace.models.common.errors import InputError, MillraceError, nearest
from millrace.models.common.user_code import describe_location, load, module_path
from millrace.models.config.dataset_spec import DatasetSpec
from millrace.models.data.sources.source import (
    Chunk,
    Source,
    projection,
    refuse_extension_types,
    slice_batches,
    used_columns,
)

SKLEARN_SETS = ("breast_cancer", "diabetes", "digits", "iris", "wine")
SKLEARN_PREFIX = "sklearn:"


@dataclass(frozen=True)
class SklearnSource(Source):
    """A data set that comes with scikit-learn; its target is named `target`."""

    name: str

    @cached_property
    def _table(self) -> pa.Table:
        return _load_sklearn(self.name)

    @property
    def schema(self) -> pa.Schema:
        """Schema of the data set."""
        return self._table.schema

    def chunks(self) -> Iterator[Chunk]:
        """Read the rows."""
        table = self._table.select(projection(self.spec, self.schema.names))
        return slice_batches(table.to_batches())

    def describe(self) -> dict[str, Any]:
        """Return the name of the data set and the version of scikit-learn."""
        return {"format": "sklearn", "set": self.name, "version": version("scikit-learn")}


@dataclass(frozen=True)
class FunctionSource(Source):
    """The user's function without arguments, which yields pyarrow record batches."""

    folder: Path

    def load_function(self) -> Callable[[], Any]:
        """Import the function.

        Raises:
            InputError: the function cannot be imported, or the reference is not a function.
        """
        function = load(self.spec.source, self.folder)
        if callable(function):
            return function
        raise InputError(
            f"{self.spec.source} is not a function",
            seen=type(function).__name__,
            valid="a function without arguments that yields pyarrow.RecordBatch",
        )

    def chunks(self) -> Iterator[Chunk]:
        """Call the function and read what it yields."""
        batches = self._call(self.load_function())
        yield from slice_batches(_select_columns(batches, used_columns(self.spec)))

    def _call(self, function: Callable[[], Any]) -> Iterator[pa.RecordBatch]:
        """Yield the function's batches; raise its exceptions as InputError."""
        try:
            result = function()
            for batch in [result] if isinstance(result, pa.Table) else result:
                yield from _as_batches(batch, self.spec.source)
        except MillraceError:
            raise
        except Exception as error:
            raise InputError(
                f"your source {self.spec.source} failed",
                seen=f"{type(error).__name__}: {error}{describe_location(error, self.folder)}",
                hint="fix the function, and run again; nothing was published",
            ) from error

    def describe(self) -> dict[str, Any]:
        """Return the function's `module:function` and the path, size and digest of its module."""
        path = module_path(self.spec.source, self.folder)
        digest = sha256(path.read_bytes()).hexdigest()
        return {
            "format": "function",
            "function": self.spec.source,
            "files": [{"path": str(path), "size": path.stat().st_size, "sha256": digest}],
        }


def open_sklearn(spec: DatasetSpec) -> SklearnSource:
    """Open `sklearn:NAME`.

    Raises:
        InputError: scikit-learn has no such data set.
    """
    name = spec.source.removeprefix(SKLEARN_PREFIX)
    if name not in SKLEARN_SETS:
        raise InputError(
            f"{spec.source} is not a data set that comes with scikit-learn",
            seen=name,
            valid=", ".join(SKLEARN_PREFIX + known for known in SKLEARN_SETS),
            hint=nearest(name, SKLEARN_SETS) or "data sets that need a download are not supported",
        )
    return SklearnSource(spec, name)


def _load_sklearn(name: str) -> pa.Table:
    if name == "digits":
        return _load_digits()
    import sklearn.datasets

    bunch = getattr(sklearn.datasets, f"load_{name}")()
    kind = pa.float64() if name == "diabetes" else pa.int64()
    target = pa.array(bunch.target).cast(kind)
    columns = {
        _snake_case(label): pa.array(bunch.data[:, place].astype("float64"))
        for place, label in enumerate(bunch.feature_names)
    }
    return pa.table({**columns, "target": target})


def _load_digits() -> pa.Table:
    """Return what `sklearn.datasets.load_digits` does, without the 0.8 s of its import."""
    unnamed = csv.ReadOptions(autogenerate_column_names=True)
    *columns, target = csv.read_csv(_data_file("digits.csv.gz"), unnamed).columns
    pixels = pa.array(np.column_stack(columns).astype("float32").ravel())
    offsets = pa.array(range(0, len(pixels) + 1, len(columns)), pa.int32())
    images = pa.ListArray.from_arrays(offsets, pixels)
    return pa.table({"image": images, "target": target.cast(pa.int64())})


def _data_file(name: str) -> Path:
    spec = find_spec("sklearn")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).with_name("datasets") / "data" / name


def _snake_case(label: str) -> str:
    """Return `sepal length (cm)` as `sepal_length_cm`."""
    return re.sub(r"[^0-9a-z]+", "_", label.lower()).strip("_")


def _as_batches(value: object, source: str) -> Iterable[pa.RecordBatch]:
    if isinstance(value, pa.Table):
        return list(value.to_batches())
    if isinstance(value, pa.RecordBatch):
        return [value]
    raise InputError(
        f"your source {source} yielded something other than record batches",
        seen=type(value).__name__,
        valid="pyarrow.RecordBatch or pyarrow.Table",
        hint="e.g. yield pyarrow.RecordBatch.from_pylist(rows)",
    )


def _select_columns(
    batches: Iterable[pa.RecordBatch], used: tuple[str, ...] | None
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        names = [name for name in batch.schema.names if used is None or name in used]
        selected = batch.select(names)
        refuse_extension_types(selected.schema, "your source")
        yield selected
