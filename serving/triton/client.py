"""A gRPC client of one Triton server. It translates Triton's errors into Millrace's, with hints."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
from tritonclient import grpc
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from millrace.models.common.errors import (
    InputError,
    MillraceError,
    TransientError,
    WorkError,
    nearest,
)
from millrace.models.common.installation import Endpoint
from millrace.serving.guard.token_names import TOKEN_METADATA
from millrace.serving.triton.backends.traffic_split.split_key import PROBE
from millrace.serving.triton.channel import channel_options
from millrace.serving.triton.server_index import (
    READY,
    UNHEALTHY,
    LoadedModel,
    live_version,
    ready_versions,
)
from millrace.serving.triton.streams.stream_client import STREAM_RESET, StreamClient
from millrace.serving.triton.streams.stream_request import PROCESS_DIED

Array = npt.NDArray[Any]

CALL_SECONDS = 10.0
PREDICT_SECONDS = 60.0
LOAD_SECONDS = 600.0
TRACE_SECONDS = 20.0
EMPTY_ID = "[request id: <id_unknown>] "


class TritonClient:
    """A connection to one server. It is thread-safe, but must not be used across a fork.

    Args:
        endpoint: the server.
        checks: whether its requests are checks of Millrace's own, which the guard does not record.
    """

    def __init__(self, endpoint: Endpoint, *, checks: bool = False) -> None:
        self.endpoint, self._checks = endpoint, checks
        self._grpc = connect(endpoint, checks=checks)
        self._streams: StreamClient | None = None

    def __enter__(self) -> "TritonClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"TritonClient({self.endpoint})"

    def close(self) -> None:
        """Close the connection."""
        self._grpc.close()
        if self._streams is not None:
            self._streams.close()

    @property
    def streams(self) -> StreamClient:
        """The client for streaming models. Only one thread may make the first use of it."""
        if self._streams is None:
            self._streams = StreamClient(self.endpoint, checks=self._checks)
        return self._streams

    def is_ready(self) -> bool:
        """Whether the server answers and is ready."""
        try:
            return bool(self._grpc.is_server_ready(client_timeout=CALL_SECONDS))
        except InferenceServerException:
            return False

    def index(self, seconds: float = CALL_SECONDS) -> tuple[LoadedModel, ...]:
        """Return the repository index: every model, and every version that was loaded.

        Args:
            seconds: the time limit for the answer.
        """
        with self._translate_errors("Triton did not list its models"):
            response = self._grpc.get_model_repository_index(client_timeout=seconds)
        return tuple(
            LoadedModel(
                name=entry.name,
                version=int(entry.version) if entry.version else None,
                state=entry.state or "UNKNOWN",
                reason=_clean_message(entry.reason),
            )
            for entry in response.models
        )

    def live_version(self, name: str) -> int | None:
        """Return the version that answers requests without a version; None if none is ready."""
        return live_version(self.index(), name)

    def parameter(self, name: str, key: str) -> str:
        """Return a parameter of a loaded model's configuration; empty if it has none.

        Raises:
            TransientError: the server cannot be reached, or the model is not loaded.
        """
        try:
            found = self._grpc.get_model_config(name, client_timeout=CALL_SECONDS)
        except InferenceServerException as error:
            raise TransientError(
                f"Triton did not say how {name} is configured", seen=_clean_message(error.message())
            ) from error
        return str(found.config.parameters[key].string_value)

    def load(self, name: str, timeout: float = LOAD_SECONDS) -> None:
        """Load or reload a model from its `config.pbtxt`; loaded versions serve during the load.

        Raises:
            WorkError: Triton refused the model. The versions that were loaded before still serve.
            TransientError: the server cannot be reached.
        """
        with self._translate_errors(f"Triton refused to load {name}", error_type=WorkError):
            self._grpc.load_model(name, client_timeout=timeout)

    def load_without_files(self, name: str, config: str) -> None:
        """Load a model that is not in the repository, from nothing but its configuration in JSON.

        Raises:
            As `load`.
        """
        nothing = {"file:1/nothing": b""}
        with self._translate_errors(f"Triton refused to load {name}", error_type=WorkError):
            self._grpc.load_model(name, config=config, files=nothing, client_timeout=LOAD_SECONDS)

    def end_trace(self) -> None:
        """Trace no more requests, and have Triton write those that it traced to its file.

        Raises:
            As `load`.
        """
        with self._translate_errors("Triton refused to end its trace", error_type=WorkError):
            self._grpc.update_trace_settings(
                settings={"trace_level": ["OFF"]}, client_timeout=TRACE_SECONDS
            )

    def unload(self, name: str) -> None:
        """Unload all versions of a model; Triton still answers the requests in flight."""
        with self._translate_errors(f"Triton refused to unload {name}", error_type=WorkError):
            self._grpc.unload_model(name, client_timeout=CALL_SECONDS)

    def predict(
        self,
        name: str,
        inputs: Mapping[str, Array],
        *,
        version: int | None = None,
        timeout: float = PREDICT_SECONDS,
        probe: bool = False,
    ) -> dict[str, Array]:
        """Send one request and return all outputs.

        Args:
            name: the model.
            inputs: an array for each input, with the batch as first dimension.
            version: a version number; None: the live version.
            timeout: the time limit in seconds.
            probe: whether the request is a health check, which a rollout does not count.

        Raises:
            InputError: the model, version or input does not exist, or a shape or type is wrong.
            TransientError: the server cannot be reached, the model is not loaded, or the request
                timed out.
        """
        parameters = {PROBE: True} if probe else None
        result = self._infer(name, inputs, version, client_timeout=timeout, parameters=parameters)
        names = [output.name for output in result.get_response().outputs]
        return {output: result.as_numpy(output) for output in names}

    def labels(
        self, name: str, inputs: Mapping[str, Array], output: str, count: int, *, version: int
    ) -> dict[int, str]:
        """Return the class labels that Triton has for the columns of an output, by column index.

        Args:
            name: the model.
            inputs: an array of one row for each input.
            output: an output of numbers; with an output of strings, Triton 2.51 crashes.
            count: the number of columns to request.
            version: the version of the model.

        Raises:
            As `predict`.
        """
        outputs = [grpc.InferRequestedOutput(output, class_count=count)]
        result = self._infer(name, inputs, version, client_timeout=PREDICT_SECONDS, outputs=outputs)
        found = result.as_numpy(output).ravel()
        rows = [each.decode(errors="replace").split(":", 2) for each in found]
        return {int(row[1]): row[2] for row in rows if len(row) == 3}

    def _infer(
        self, name: str, inputs: Mapping[str, Array], version: int | None, **options: Any
    ) -> grpc.InferResult:
        try:
            return self._grpc.infer(
                name,
                [to_input(key, array) for key, array in inputs.items()],
                model_version="" if version is None else str(version),
                **options,
            )
        except InferenceServerException as error:
            raise self._prediction_error(error, name, version) from error

    def _prediction_error(
        self, error: InferenceServerException, name: str, version: int | None
    ) -> MillraceError:
        """Return the Millrace error for a failed prediction, with the valid inputs or models."""
        status = _status(error)
        what = f"the prediction of {name} failed"
        if status in ("UNAVAILABLE", "NOT_FOUND") and self.is_ready():
            return self._not_served_error(error, name, version)
        if status == "INVALID_ARGUMENT":
            return InputError(
                f"the model {name} rejects this input",
                seen=_clean_message(error.message()),
                valid=self._inputs_of(name, version),
            )
        if UNHEALTHY in str(error.message()):
            return TransientError(
                what,
                seen=_clean_message(error.message()),
                hint=PROCESS_DIED,
            )
        return self._translate_error(what, error)

    def _not_served_error(
        self, error: InferenceServerException, name: str, version: int | None
    ) -> InputError | TransientError:
        entries = self.index()
        loaded = sorted({entry.name for entry in entries if entry.state == READY})
        ready = ready_versions(entries, name)
        if name not in {entry.name for entry in entries}:
            return InputError(
                "there is no such model",
                seen=name,
                valid=", ".join(loaded) or "no model is loaded",
                hint=nearest(name, loaded) or "promote a version, then run: millrace release",
            )
        if version is not None and ready and version not in ready:
            return InputError(
                f"version {version} of {name} is not loaded", seen=version, valid=list(ready)
            )
        return TransientError(
            f"the model {name} is not loaded at the moment",
            seen=_clean_message(error.message()),
            valid=", ".join(loaded) or "no model is loaded",
            hint="promote a version, then run: millrace release",
        )

    def _inputs_of(self, name: str, version: int | None) -> str | None:
        try:
            metadata = self._grpc.get_model_metadata(
                name, "" if version is None else str(version), client_timeout=CALL_SECONDS
            )
        except InferenceServerException:
            return None
        return ", ".join(
            f"{tensor.name}: {tensor.datatype} {list(tensor.shape)}" for tensor in metadata.inputs
        )

    @contextmanager
    def _translate_errors(
        self, what: str, error_type: type[InputError | WorkError] = InputError
    ) -> Iterator[None]:
        try:
            yield
        except InferenceServerException as error:
            raise self._translate_error(what, error, error_type) from error

    def _translate_error(
        self,
        what: str,
        error: InferenceServerException,
        error_type: type[InputError | WorkError] = WorkError,
    ) -> InputError | WorkError:
        status, seen = _status(error), _clean_message(error.message())
        if status == "DEADLINE_EXCEEDED":
            return TransientError(
                what, seen="no answer in time", hint="try again; check the load of Triton"
            )
        may_be_gone = status in ("UNAVAILABLE", "CANCELLED") or STREAM_RESET in seen
        if may_be_gone and not self.is_ready():
            return TransientError(
                what,
                seen=f"no Triton answers at {self.endpoint}",
                hint="start Triton with: millrace up; or set MILLRACE_TRITON to a running server",
            )
        if TOKEN_METADATA in seen:
            return error_type(what, seen=seen, hint=self._token_hint())
        return error_type(what, seen=seen)

    def _token_hint(self) -> str:
        if self.endpoint.token:
            return (
                "this Triton has another token. If it is another home's, set "
                "MILLRACE_TRITON_HTTP_PORT, MILLRACE_TRITON_GRPC_PORT and "
                "MILLRACE_TRITON_METRICS_PORT to free ports; if it is this one's, run: "
                "millrace down, then millrace up"
            )
        return "unset MILLRACE_TRITON, and set MILLRACE_HOME to the home folder of this Triton"


def connect(endpoint: Endpoint, *, checks: bool = False) -> grpc.InferenceServerClient:
    """Connect to a server; every call sends the endpoint's token, if there is one."""
    options = list(channel_options(endpoint, checks=checks))
    client = grpc.InferenceServerClient(endpoint.grpc, channel_args=options)
    if endpoint.token:
        client.register_plugin(
            lambda request: request.headers.update({TOKEN_METADATA: endpoint.token})
        )
    return client


def _status(error: InferenceServerException) -> str:
    return str(error.status() or "").removeprefix("StatusCode.")


def _clean_message(message: str) -> str:
    """Return Triton's message without the empty request id and the backend's stack trace."""
    return message.removeprefix(EMPTY_ID).partition("\n\nAt:")[0].strip()


def to_input(name: str, array: Array) -> grpc.InferInput:
    """Return an array as one input of a request.

    Raises:
        InputError: Triton has no datatype for the dtype of the array.
    """
    datatype = np_to_triton_dtype(array.dtype)
    if datatype is None:
        raise InputError(
            f"Triton does not support the dtype of the input {name}",
            seen=array.dtype,
            valid="bool, signed and unsigned integers, float16, float32, float64, str",
        )
    if array.dtype.kind == "U":
        array = array.astype(np.object_)
    tensor = grpc.InferInput(name, list(array.shape), datatype)
    tensor.set_data_from_numpy(array)
    return tensor
