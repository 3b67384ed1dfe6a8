"""Sends rows to a live model of the kind `graph`."""

import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from millrace.models.common.arrays import Array
from millrace.models.common.errors import InputError, closest
from millrace.models.inference.answers import answers_of
from millrace.models.inference.features import Encoding, Feature
from millrace.models.registry.version_files import Package
from millrace.serving.triton.client import TritonClient
from millrace.tasks.kinds.certified import pipeline_of
from millrace.tasks.kinds.graph.graph_files import graph_files
from millrace.tasks.kinds.steps import Question, Table

MAX_VALUES = 10
"""Maximum number of a category's values that an error lists."""
MAX_ROWS = 10
"""Maximum number of rows that an error lists."""

_JSON_TYPES: dict[type, str] = {
    bool: "true or false",  # before int, of which it is a subclass
    int: "a number",
    float: "a number",
    str: "a text",
    list: "a list",
    dict: "an object",
}


@dataclass(frozen=True)
class LiveAnswer:
    """The live model's answer; an `Answer`.

    Attributes:
        model: the model.
        version: the version that answered.
        endpoint: the address of the server.
        predictions: the prediction for each row.
        scores: the probability of the predicted class, or the predicted value.
        milliseconds: the duration of the request.
    """

    model: str
    version: int
    endpoint: str
    predictions: tuple[Any, ...]
    scores: tuple[float, ...]
    milliseconds: float

    @property
    def title(self) -> str:
        """The version and the server that answered, and the time."""
        return f"{self.model} version {self.version} at {self.endpoint}, {self.milliseconds:.1f} ms"

    def table(self) -> Table:
        """Return predictions and scores as a table."""
        pairs = zip(self.predictions, self.scores, strict=True)
        rows = [(str(label), f"{score:.4f}") for label, score in pairs]
        return Table(("prediction", "score"), rows)


def predict_rows(client: TritonClient, package: Package, question: Question) -> LiveAnswer:
    """Send rows to the live version.

    Raises:
        InputError: the question is a text, or a row cannot be encoded.
        TransientError: Triton cannot be reached.
    """
    files = graph_files(package)
    model, version = files.version.model, files.version.version
    if question.text is not None:
        raise InputError(
            f"{model} predicts from rows, not from a text",
            seen=question.text,
            valid="rows: --rows FILE, or --rows - for stdin",
        )
    golden = files.golden_request()
    request = (
        read_rows(files.encoding, question.rows)
        if question.rows
        else {name: array[:1] for name, array in golden.items()}
    )
    started = time.perf_counter()
    meaning, most = answers_of(files.encoding), pipeline_of(package).serving.max_batch_size
    values = np.concatenate(
        [
            client.predict(model, part, version=version)[meaning.output]
            for part in split_request(request, most)
        ]
    )
    seconds = time.perf_counter() - started
    return LiveAnswer(
        model,
        version,
        client.endpoint.grpc,
        tuple(meaning.prediction(values)),
        tuple(float(score) for score in meaning.score(values)),
        seconds * 1000,
    )


def split_request(request: Mapping[str, Array], rows: int) -> Iterator[Mapping[str, Array]]:
    """Split a request into requests of at most as many rows as the server takes at once."""
    count = len(next(iter(request.values())))
    for start in range(0, count, rows):
        yield {name: array[start : start + rows] for name, array in request.items()}


def golden_rows(package: Package) -> dict[str, Array]:
    """Return the golden rows as a client sends them, by input."""
    return graph_files(package).golden_request()


def read_rows(encoding: Encoding, source: str) -> dict[str, Array]:
    """Read JSON Lines and return them as a request; every row must have every field."""
    rows = _objects(encoding, source)
    _require_fields(encoding, rows)
    columns = {f.name: _column(f.name, [row[f.name] for row in rows]) for f in encoding.features}
    table = pa.table(columns)
    faults = enumerate(encoding.errors(encoding.encode(table)), start=1)
    if bad := [(number, fault) for number, fault in faults if fault]:
        raise _unanswerable(encoding, bad, rows)
    return encoding.request(table)


def _objects(encoding: Encoding, source: str) -> list[dict[str, Any]]:
    try:
        text = sys.stdin.read() if source == "-" else Path(source).read_text()
    except OSError as error:
        raise _no_file(source, error) from error
    except ValueError as error:
        raise _unreadable(encoding, f"{source}: {error}") from error
    rows = []
    for number, line in enumerate(filter(str.strip, text.splitlines()), start=1):
        try:
            row = json.loads(line)
        except ValueError as error:
            raise _unreadable(encoding, f"{source}, row {number}: {error}") from error
        if not isinstance(row, dict):
            raise _unreadable(encoding, f"{source}, row {number}: {_as_text(row)}")
        rows.append(row)
    if not rows:
        raise _unreadable(encoding, f"{source}: no rows")
    return rows


def _no_file(source: str, error: OSError) -> InputError:
    is_missing = isinstance(error, FileNotFoundError)
    return InputError(
        f"the file of rows {'does not exist' if is_missing else 'cannot be read'}",
        seen=Path(source).absolute() if is_missing else error,
        valid="a file of JSON Lines, or - for stdin",
        hint="check the path after --rows; a relative path starts from the current folder",
    )


def _unreadable(encoding: Encoding, seen: str) -> InputError:
    return InputError(
        "the rows cannot be read",
        seen=seen,
        valid="JSON Lines with " + ", ".join(f.name for f in encoding.features),
        hint="write one JSON object per line",
    )


def _require_fields(encoding: Encoding, rows: Sequence[Mapping[str, Any]]) -> None:
    known = {feature.name for feature in encoding.features}
    for number, row in enumerate(rows, start=1):
        for feature in encoding.features:
            if feature.name not in row:
                raise InputError(
                    f"row {number} has no field {feature.name!r}",
                    seen=", ".join(row) or "no fields",
                    valid=", ".join(f.name for f in encoding.features),
                    hint=_remedy(feature, [name for name in row if name not in known]),
                )


def _remedy(feature: Feature, unknown: list[str]) -> str:
    """Return a hint for a missing field, given the unknown fields of the row."""
    if meant := closest(feature.name, unknown):
        return f"did you mean {feature.name!r} by {meant!r}?"
    return "write null if it is not known" if feature.nullable else "add the field"


def _column(name: str, cells: list[Any]) -> pa.Array:
    try:
        return pa.array(cells)
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise InputError(
            f"the values of {name!r} have different types",
            seen=_first_other_type(cells) or error,
            hint="give the field the same type in every row",
        ) from error


def _first_other_type(cells: Sequence[Any]) -> str | None:
    """Say which cell is the first of another type than one before it; None if all are alike.

    null is of any type, and whole numbers are numbers like others.
    """
    known = [(number, cell) for number, cell in enumerate(cells, start=1) if cell is not None]
    for number, cell in known:
        first, before = known[0]
        if _json_type(cell) != _json_type(before):
            return (
                f"row {number} has {_json_type(cell)}, {_as_text(cell)}; "
                f"row {first} has {_json_type(before)}, {_as_text(before)}"
            )
    return None


def _json_type(cell: object) -> str:
    """Return the name of a value's type in JSON, with its article."""
    return next(name for type_, name in _JSON_TYPES.items() if isinstance(cell, type_))


def _unanswerable(
    encoding: Encoding, bad: Sequence[tuple[int, str]], rows: Sequence[Mapping[str, Any]]
) -> InputError:
    """Return the error about the rows that cannot be answered, each with its number."""
    features = [
        next(f for f in encoding.features if fault in {f"{f.name} {said}" for said in f.faults})
        for _, fault in bad
    ]
    if len(bad) == 1:
        ((number, fault),) = bad
        return InputError(
            f"row {number} cannot be answered: {fault}",
            seen=_as_text(rows[number - 1][features[0].name]),
            valid=_valid(features[0]),
            hint="fix the row, or leave it out",
        )
    shown = [
        f"row {number}: {fault}, {_as_text(rows[number - 1][feature.name])}"
        for (number, fault), feature in zip(bad, features, strict=True)
    ]
    more = f"; … {len(bad) - MAX_ROWS} more" if len(bad) > MAX_ROWS else ""
    wanted = {feature.name: _valid(feature) for feature in features}
    return InputError(
        f"{len(bad)} of {len(rows)} rows cannot be answered",
        seen="; ".join(shown[:MAX_ROWS]) + more,
        valid="; ".join(f"{name}: {valid}" for name, valid in wanted.items()),
        hint="fix these rows, or leave them out",
    )


def _valid(feature: Feature) -> str:
    if feature.kind == "number":
        return _valid_number(feature)
    if feature.kind == "text":
        return "text"
    if feature.kind == "vector":
        return f"{feature.width} finite numbers"
    shown = ", ".join(_as_text(value) for value in feature.categories[:MAX_VALUES])
    more = len(feature.categories) - MAX_VALUES
    return shown + (f", … {more} more" if more > 0 else "")


def _valid_number(feature: Feature) -> str:
    if feature.values == "bool":
        return "true or false"
    kind = "a whole number" if feature.values == "int" else "a finite number"
    low = "" if feature.min is None else f" from {feature.min:g}"
    return kind + low + ("" if feature.max is None else f" to {feature.max:g}")


def _as_text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)[:200]
