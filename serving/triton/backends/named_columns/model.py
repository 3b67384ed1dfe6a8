"""A Python-based Triton backend: the front step that takes a model's columns by their names.

The front step of MODEL is the model MODEL.columns. It reads each column as the data has it (texts,
numbers, true and false), or rows of JSON, checks them by the rules of the version's dataset, and
passes them on to the same version of MODEL, by BLS (Business Logic Scripting). A request that
cannot be answered is refused with the words of batch inference. Parameters in `config.pbtxt`:

    model       the model that answers
    max_rows    the most rows of one request to it
    rows        the input with rows of JSON; it is sent alone, or all columns are
    request_log `serving.request_log` as JSON, if requests are kept

Requests that wait together become one request to the model. The backend runs in a stub process and
imports nothing of Millrace.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from logged_rows import Describer, LoggedRequest  # type: ignore[import-not-found]
from named_rows import load_rows  # type: ignore[import-not-found]
from request_log import RequestLog  # type: ignore[import-not-found]

REQUEST_LOG = "request_log"
"""Folder beside the model repository, with a folder of files for each model."""
NOT_LOADED = ("is not ready", "is not at ready state", "is not found", "unknown model")
"""Parts of Triton's error messages when the version is being replaced."""


class TritonPythonModel:
    """The front step of one version of a model."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Read the columns; an exception here makes Triton refuse the front step."""
        config = json.loads(args["model_config"])
        values = {key: entry["string_value"] for key, entry in config["parameters"].items()}
        self.model, self.rows = values["model"], values["rows"]
        self.max_rows = int(values["max_rows"])
        self.version = int(args["model_version"])
        self.outputs = [entry["name"] for entry in config["output"]]
        home = Path(args["model_repository"]).parents[1]
        self.columns = load_rows(Path(args["model_repository"]) / args["model_version"])
        self.log: RequestLog | None = None
        if "request_log" in values:
            spec = json.loads(values["request_log"])
            logged = Describer(self.columns, self.version, self.rows, spec["masked"])
            folder = home / REQUEST_LOG / self.model
            warn = pb_utils.Logger.log_warn
            self.log = RequestLog(folder, spec, logged.describe, warn)

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Answer all requests by one request to the model."""
        responses: list[Any] = [None] * len(requests)
        read = {}
        for position, request in enumerate(requests):
            try:
                read[position] = self._read(request)
            except ValueError as error:  # also a text that is not UTF-8
                responses[position] = refusal(str(error))
            except Exception as error:  # a fault of ours in one request fails no other
                responses[position] = failure(repr(error))
        if not read:
            return responses
        for position, answer in self._ask(requests, read).items():
            responses[position] = answer
        return responses

    def finalize(self) -> None:
        """Write what is left of the log."""
        if self.log is not None:
            self.log.close()

    def _read(self, request: Any) -> Any:
        tensors = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        if self.rows not in tensors:
            return self.columns.read_tensors(tensors)
        if len(tensors) > 1:
            raise ValueError(f"send either {self.rows!r} or the columns, not both")
        return self.columns.read_json(tensors[self.rows].ravel().tolist())

    def _ask(self, requests: Sequence[Any], read: Mapping[int, Any]) -> dict[int, Any]:
        """Return the responses to the requests whose rows were read, by position."""
        rows = [*read.values()]
        whole = rows[0] if len(rows) == 1 else np.concatenate(rows)
        answers: dict[str, list[Any]] = {name: [] for name in self.outputs}
        for start in range(0, len(whole), self.max_rows):
            answer = self._call(whole[start : start + self.max_rows])
            if answer.has_error():
                return {each: failure(answer.error().message()) for each in read}
            for tensor in answer.output_tensors():
                answers[tensor.name()].append(tensor.as_numpy())
        ends = np.cumsum([len(each) for each in rows])[:-1]
        parts = {name: np.split(np.concatenate(found), ends) for name, found in answers.items()}
        if self.log is not None and self.columns.output in parts:
            for number, position in enumerate(read):
                if self.log.wants():
                    self.log.add(logged(requests[position], parts[self.columns.output][number]))
        return {
            position: pb_utils.InferenceResponse(
                [pb_utils.Tensor(name, part[number]) for name, part in parts.items()]
            )
            for number, position in enumerate(read)
        }

    def _call(self, rows: Any) -> Any:
        """Pass rows on to the model, and return its answer, which may be an error."""
        return pb_utils.InferenceRequest(
            model_name=self.model,
            model_version=self.version,
            inputs=[pb_utils.Tensor(self.columns.input, rows)],
            requested_output_names=self.outputs,
        ).exec()


def logged(request: Any, answers: Any) -> LoggedRequest:
    """Return a request for the log; its inputs are copied, as Triton's memory is used again."""
    tensors = {tensor.name(): tensor.as_numpy().copy() for tensor in request.inputs()}
    return LoggedRequest(request.request_id(), tensors, answers)


def refusal(text: str) -> Any:
    """Return the response to a request that the client has to change."""
    kind, text = pb_utils.TritonError, text.encode(errors="backslashreplace").decode()
    return pb_utils.InferenceResponse(error=kind(text, kind.INVALID_ARG))


def failure(text: str) -> Any:
    """Return the response for an error of the model, or for a version that is being replaced."""
    kind = pb_utils.TritonError
    code = kind.UNAVAILABLE if any(words in text for words in NOT_LOADED) else kind.INTERNAL
    return pb_utils.InferenceResponse(error=kind(text, code))
