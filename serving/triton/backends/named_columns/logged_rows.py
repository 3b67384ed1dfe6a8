"""The rows of a request and their answers, as the request log keeps them."""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from named_rows import NamedRows, cells_of  # type: ignore[import-not-found]

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class LoggedRequest:
    """A request that was answered.

    Attributes:
        id: the client's id of the request; may be empty.
        tensors: copies of its inputs, by name.
        answers: the model's output, `[rows, classes]` or `[rows, 1]`.
    """

    id: str
    tensors: Mapping[str, Array]
    answers: Array


class Describer:
    """Describes the rows of requests to one version.

    Args:
        columns: the version's columns.
        version: its number.
        rows: the input with rows of JSON.
        masked: columns that are left out.
    """

    def __init__(
        self, columns: NamedRows, version: int, rows: str, masked: Collection[str]
    ) -> None:
        self._columns, self._version, self._rows = columns, version, rows
        self._kept = [name for name in columns.names if name not in masked]

    def describe(self, request: LoggedRequest) -> list[dict[str, Any]]:
        """Return a row of the log for each row of a request."""
        rows = self._rows_of(request.tensors)
        return [
            {
                "version": self._version,
                "request": request.id,
                "number": number,
                "key": {name: row.get(name) for name in self._columns.key},
                "row": {name: row.get(name) for name in self._kept},
                **self._answer(answer),
            }
            for number, (row, answer) in enumerate(zip(rows, request.answers, strict=True))
        ]

    def _rows_of(self, tensors: Mapping[str, Array]) -> list[Mapping[str, Any]]:
        if self._rows in tensors:
            return [json.loads(row) for row in tensors[self._rows].ravel().tolist()]
        values = {column["name"]: column["values"] for column in self._columns.columns}
        cells = {name: cells_of(each, values.get(name, "")) for name, each in tensors.items()}
        count = len(next(iter(cells.values())))
        return [{name: each[row] for name, each in cells.items()} for row in range(count)]

    def _answer(self, answer: Array) -> dict[str, Any]:
        """Return the predicted class with its probability, or the number."""
        labels = self._columns.labels
        if not labels:
            return {"prediction": float(answer.ravel()[0]), "score": float(answer.ravel()[0])}
        best = int(np.argmax(answer))
        return {"prediction": labels[best], "score": float(answer[best])}
