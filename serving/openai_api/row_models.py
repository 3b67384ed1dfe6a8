"""The models that answer rows by the names of their columns, as Triton's configurations say."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tritonclient.grpc import model_config_pb2, service_pb2

from millrace.models.inference.named_columns import row_schema
from millrace.serving.triton.column_front import SCHEMA
from millrace.serving.triton.server_index import COLUMNS


@dataclass(frozen=True)
class RowModel:
    """A version of a model that answers rows.

    Attributes:
        name: the model.
        version: the version.
        rows: the input of the front step that takes rows of JSON.
        columns: the columns, as in `columns.json`.
        labels: the classes, in the order of the output; empty for a regression.
        output: the output with the probabilities of the classes, or the number.
        target: the column that is predicted.
        key: columns that a row may have beside, by which its answer is found later.
    """

    name: str
    version: int
    rows: str
    columns: tuple[Mapping[str, Any], ...]
    labels: tuple[str | int | bool, ...]
    output: str
    target: str
    key: tuple[str, ...] = ()

    @classmethod
    def of(cls, config: model_config_pb2.ModelConfig, version: int) -> "RowModel":
        """Read the configuration of a front step."""
        values = json.loads(config.parameters[SCHEMA].string_value)
        return cls(
            name=config.name.removesuffix(COLUMNS),
            version=version,
            rows=config.parameters["rows"].string_value,
            columns=tuple(values["columns"]),
            labels=tuple(values["labels"]),
            output=values["output"],
            target=values["target"],
            key=tuple(values.get("key", ())),  # steps of an earlier release have none
        )

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON Schema of a row."""
        return row_schema([*self.columns])

    def request(
        self, rows: list[Mapping[str, Any]], request_id: str
    ) -> service_pb2.ModelInferRequest:
        """Return the request for rows to the front step."""
        texts = [json.dumps(row, ensure_ascii=False).encode() for row in rows]
        tensor = service_pb2.ModelInferRequest.InferInputTensor(
            name=self.rows, datatype="BYTES", shape=[len(rows), 1]
        )
        raw = b"".join(len(text).to_bytes(4, "little") + text for text in texts)
        return service_pb2.ModelInferRequest(
            model_name=self.name + COLUMNS,
            model_version=str(self.version),
            id=request_id,
            inputs=[tensor],
            raw_input_contents=[raw],
        )

    def predictions(
        self, answer: service_pb2.ModelInferResponse, scores: int
    ) -> list[dict[str, Any]]:
        """Return the prediction of each row, with the probability of its class.

        Args:
            answer: the answer of the front step.
            scores: number of the most probable classes whose probabilities are returned too.
        """
        names = [output.name for output in answer.outputs]
        raw = answer.raw_output_contents[names.index(self.output)]
        values = np.frombuffer(raw, np.float32)
        if not self.labels:
            return [{"prediction": _number(value)} for value in values]
        return [self._classified(row, scores) for row in values.reshape(-1, len(self.labels))]

    def _classified(self, row: npt.NDArray[Any], scores: int) -> dict[str, Any]:
        best = int(row.argmax())
        found: dict[str, Any] = {"prediction": self.labels[best], "score": _number(row[best])}
        if scores:
            order = np.argsort(-row, kind="stable")[:scores]
            named = {_name(self.labels[place]): _number(row[place]) for place in order}
            found["scores"] = named
        return found


def _name(label: str | int | bool) -> str:
    """Return a label as the name of a field: true as JSON has it."""
    return label if isinstance(label, str) else json.dumps(label)


def _number(value: np.float32) -> float:
    """Return a number with the digits that a float32 has."""
    return float(str(value))
