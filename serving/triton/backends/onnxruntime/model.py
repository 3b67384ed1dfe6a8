"""A Python-based Triton backend for models whose version folder has a `model.onnx`.

It replaces NVIDIA's C++ backend of the same name and reads the same `config.pbtxt`: the parameters
`intra_op_thread_count`, `inter_op_thread_count`, `execution_mode`, `enable_mem_arena` and
`enable_mem_pattern`, `optimization { graph { level } }`, and the accelerator `tensorrt` of GPU
instances, which both backends ignore on a CPU. Triton runs this backend in stub processes, one for
each instance, so it imports nothing of Millrace.

Unlike the C++ backend, it checks requests by `features.json`, if the version has that file, and
never answers with NaN or an infinity. Neither applies to Triton's warm-up, because its rows of
zeros need not be valid.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort
import triton_python_backend_utils as pb_utils
from execution_accelerator import tensorrt_options  # type: ignore[import-not-found]
from input_rules import load_rules  # type: ignore[import-not-found]
from onnxruntime.capi import onnxruntime_pybind11_state as ort_errors

Array = npt.NDArray[Any]
Feed = dict[str, Array]

CLIENT_ERRORS = (ort_errors.InvalidArgument, ValueError, UnicodeDecodeError)
MODEL_ERRORS = (ort_errors.Fail, ort_errors.RuntimeException, ort_errors.EPFail, MemoryError)
NOT_FINITE = "the model's answer is not a number: it is NaN or infinite"
GRAPH_LEVELS = {
    -1: ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    0: ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
    1: ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    2: ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
}


class TritonPythonModel:
    """One instance of one model version: an ONNX Runtime session."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Open the session; an exception here makes Triton refuse the version."""
        config = json.loads(args["model_config"])
        version = Path(args["model_repository"]) / args["model_version"]
        self.is_batched = config["max_batch_size"] > 0
        self.inputs = [entry["name"] for entry in config["input"]]
        self.shapes = {
            entry["name"]: input_shape(entry, self.is_batched) for entry in config["input"]
        }
        self.outputs = [entry["name"] for entry in config["output"]]
        self.session = ort.InferenceSession(
            str(version / (config.get("default_model_filename") or "model.onnx")),
            sess_options=session_options(config),
            providers=providers(
                args["model_instance_kind"], args["model_instance_device_id"], config
            ),
        )
        check_loaded(args["model_instance_kind"], config, self.session.get_providers())
        self.text_inputs = {
            node.name for node in self.session.get_inputs() if node.type == "tensor(string)"
        }
        self.rules = load_rules(version)
        self.warmup_rows_left = warmup_rows(config)
        self.is_warming_up = False
        self.check()

    def check(self) -> None:
        """Raise an error if config.pbtxt names a tensor that the ONNX graph does not have."""
        check_names("input", self.inputs, [node.name for node in self.session.get_inputs()])
        check_names("output", self.outputs, [node.name for node in self.session.get_outputs()])

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Answer all requests, if possible by one run of the session."""
        responses: list[Any] = [None] * len(requests)
        feeds: dict[int, Feed] = {}
        for position, request in enumerate(requests):
            try:
                feeds[position] = self._read_feed(request)
            except CLIENT_ERRORS as error:
                responses[position] = error_response(error)
        self.is_warming_up = self._is_warmup(feeds)
        if not self.is_warming_up:
            for position, reason in self._find_faults(feeds).items():
                responses[position] = error_response(ValueError(reason))
                del feeds[position]
        for group in [list(feeds)] if self.is_batched else [[position] for position in feeds]:
            answers = self._answer_group(
                [requests[position] for position in group], [feeds[position] for position in group]
            )
            for position, answer in zip(group, answers, strict=True):
                responses[position] = answer
        return responses

    def _is_warmup(self, feeds: Mapping[int, Feed]) -> bool:
        """Whether these are the rows of zeros that Triton sends before clients' requests."""
        if self.warmup_rows_left <= 0:
            return False
        arrays = [array for feed in feeds.values() for array in feed.values()]
        zeros = all(array.dtype != np.object_ and not array.any() for array in arrays)
        rows = (
            sum(len(next(iter(feed.values()))) for feed in feeds.values()) if self.is_batched else 1
        )
        self.warmup_rows_left = self.warmup_rows_left - rows if zeros else 0
        return zeros

    def _find_faults(self, feeds: Mapping[int, Feed]) -> dict[int, str]:
        """Return the reason of each refused request, by the request's position."""
        if self.rules is None:
            return {}
        positions = [p for p, feed in feeds.items() if self.rules.input in feed]
        found = self.rules.find_faults([feeds[p][self.rules.input] for p in positions])
        return {positions[number]: reason for number, reason in found.items()}

    def finalize(self) -> None:
        """Free the session."""
        del self.session

    def _read_feed(self, request: Any) -> Feed:
        """Return a request's inputs; numbers are views of Triton's shared memory, not copies.

        Raises:
            ValueError: an array does not have the shape of the model's input. Triton 2.51 accepts
                `[0, 4]` and `[2**62, 4]` with four numbers, and returns an array of one dimension.
        """
        feed = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        for name, array in feed.items():
            check_shape(name, array.shape, self.shapes[name])
        for name in self.text_inputs & feed.keys():
            feed[name] = decode_texts(feed[name])
        return feed

    def _answer_group(self, requests: list[Any], feeds: list[Feed]) -> list[Any]:
        """Run the requests together; if this fails, run each alone, so that only bad ones fail."""
        if not requests:
            return []
        try:
            return self._run(requests, feeds)
        except (*CLIENT_ERRORS, *MODEL_ERRORS) as error:
            if len(requests) == 1:
                return [error_response(error)]
        return [
            self._answer_group([request], [feed])[0]
            for request, feed in zip(requests, feeds, strict=True)
        ]

    def _run(self, requests: list[Any], feeds: list[Feed]) -> list[Any]:
        wanted = [set(request.requested_output_names()) for request in requests]
        names = [name for name in self.outputs if any(name in each for each in wanted)]
        arrays = self.session.run(names, concatenate_feeds(feeds))
        pieces = [[array] for array in arrays]
        if len(feeds) > 1:
            rows = [len(next(iter(feed.values()))) for feed in feeds]
            pieces = [split_rows(array, rows) for array in arrays]
        return [
            self.response(
                {
                    name: pieces[column][position]
                    for column, name in enumerate(names)
                    if name in wanted[position]
                }
            )
            for position in range(len(requests))
        ]

    def response(self, outputs: Mapping[str, Array]) -> Any:
        """Return the response to one request, which is an error if an output is not finite."""
        if not self.is_warming_up and not all(map(is_finite, outputs.values())):
            return internal_error(NOT_FINITE)
        tensors = [pb_utils.Tensor(name, encode_texts(array)) for name, array in outputs.items()]
        return pb_utils.InferenceResponse(tensors)


def session_options(config: Mapping[str, Any]) -> ort.SessionOptions:
    """Return ONNX Runtime's session options for the parsed JSON form of `config.pbtxt`."""
    values = {key: entry["string_value"] for key, entry in config.get("parameters", {}).items()}
    options = ort.SessionOptions()
    if int(values.get("intra_op_thread_count", "0")) > 0:
        options.intra_op_num_threads = int(values["intra_op_thread_count"])
    if int(values.get("inter_op_thread_count", "0")) > 0:
        options.inter_op_num_threads = int(values["inter_op_thread_count"])
    if values.get("execution_mode", "0") == "1":
        options.execution_mode = ort.ExecutionMode.ORT_PARALLEL
    options.enable_cpu_mem_arena = is_true(values.get("enable_mem_arena", "true"))
    options.enable_mem_pattern = is_true(values.get("enable_mem_pattern", "true"))
    level = config.get("optimization", {}).get("graph", {}).get("level", 0)
    options.graph_optimization_level = GRAPH_LEVELS[int(level)]
    return options


def providers(kind: str, device: str, config: Mapping[str, Any]) -> list[Any]:
    """Return the execution providers of an instance, in order of priority.

    For KIND_GPU: TensorRT (if the accelerator is requested), CUDA and CPU. Otherwise only CPU.
    """
    options = read_accelerator(config)
    if kind != "GPU":
        if options is not None:
            pb_utils.Logger.log_warn("the accelerator tensorrt is for KIND_GPU; a CPU ignores it")
        return ["CPUExecutionProvider"]
    if "CUDAExecutionProvider" not in ort.get_available_providers():
        raise pb_utils.TritonModelException(
            "instance_group is KIND_GPU but this onnxruntime has no CUDAExecutionProvider: "
            "install onnxruntime-gpu in the environment of Triton, or serve on KIND_CPU"
        )
    # CUDA and cuDNN of the wheels `nvidia-…`, which the loader does not find by itself.
    ort.preload_dlls()
    place = {"device_id": int(device)}
    # By default float32 is multiplied with the 10 bits of TF32, and answers differ by 5e-4.
    cuda: list[Any] = [
        ("CUDAExecutionProvider", {**place, "use_tf32": "0"}),
        "CPUExecutionProvider",
    ]
    if options is None:
        return cuda
    with suppress(ImportError):
        import tensorrt_libs  # noqa: F401 - loads the provider's libraries from a wheel
    return [("TensorrtExecutionProvider", {**place, **options}), *cuda]


def read_accelerator(config: Mapping[str, Any]) -> dict[str, str] | None:
    """Return the options of TensorRT; None if it is not requested. Unknown options are refused."""
    try:
        return tensorrt_options(config)  # type: ignore[no-any-return]
    except ValueError as error:
        raise pb_utils.TritonModelException(str(error)) from error


def check_loaded(kind: str, config: Mapping[str, Any], loaded: Sequence[str]) -> None:
    """Raise an error if CUDA or TensorRT was not loaded; ONNX Runtime would use the CPU."""
    if kind != "GPU":
        return
    if "CUDAExecutionProvider" not in loaded:
        raise pb_utils.TritonModelException(
            "ONNX Runtime cannot load CUDA: install onnxruntime-gpu[cuda,cudnn], of the version of "
            "CUDA that the driver supports, or serve on KIND_CPU"
        )
    if read_accelerator(config) is not None and "TensorrtExecutionProvider" not in loaded:
        raise pb_utils.TritonModelException(
            "ONNX Runtime cannot load TensorRT: install TensorRT of the version that "
            "onnxruntime-gpu was built with, or serve without serving.accelerator"
        )


def input_shape(entry: Mapping[str, Any], batches: bool) -> tuple[int, ...]:
    """Return the shape of an input in config.pbtxt; -1 for a dimension of any length."""
    return (-1,) * batches + tuple(int(length) for length in entry["dims"])


def check_shape(name: str, shape: Sequence[int], wanted: Sequence[int]) -> None:
    """Raise ValueError if an array's shape does not fit the input's shape."""
    if len(shape) != len(wanted) or any(
        length not in (-1, found) for length, found in zip(wanted, shape, strict=True)
    ):
        raise ValueError(f"input {name!r} has shape {[*shape]}, but the model needs {[*wanted]}")


def check_names(kind: str, configured: Sequence[str], found: Sequence[str]) -> None:
    """Raise an error if config.pbtxt names a tensor that the model does not have."""
    unknown = sorted(set(configured) - set(found))
    if unknown:
        raise pb_utils.TritonModelException(
            f"config.pbtxt names the {kind} {unknown}, but the model has {sorted(found)}"
        )


def concatenate_feeds(feeds: Sequence[Feed]) -> Feed:
    """Concatenate feeds along the batch dimension."""
    if len(feeds) == 1:
        return feeds[0]
    return {name: np.concatenate([feed[name] for feed in feeds]) for name in feeds[0]}


def split_rows(array: Array, rows: Sequence[int]) -> list[Array]:
    """Split the output of a run of several requests into views with `rows` rows each."""
    if array.ndim == 0 or len(array) != sum(rows):
        raise ValueError(f"an output has shape {array.shape} for a batch of {sum(rows)} rows")
    return np.split(array, np.cumsum(rows)[:-1])


def decode_texts(array: Array) -> Array:
    """Convert Triton's bytes to ONNX Runtime's str."""
    texts = [item.decode() if isinstance(item, bytes) else item for item in array.ravel()]
    return np.array(texts, dtype=object).reshape(array.shape)


def encode_texts(array: Array) -> Array:
    """Convert ONNX Runtime's str to Triton's bytes; numbers stay unchanged."""
    if array.dtype != np.object_:
        return array
    return np.array([str(item).encode() for item in array.ravel()], dtype=object).reshape(
        array.shape
    )


def warmup_rows(config: Mapping[str, Any]) -> int:
    """Return how many rows of zeros Triton sends to an instance before the instance is ready."""
    entries = config.get("model_warmup", [])
    return sum(
        max(entry.get("batch_size", 1), 1) * max(entry.get("count", 0), 1) for entry in entries
    )


def is_finite(array: Array) -> bool:
    """Whether an output has neither NaN nor an infinity; always true for non-float outputs."""
    return array.dtype.kind != "f" or bool(np.isfinite(array).all())


def is_true(text: str) -> bool:
    """Whether a flag is set, by the rules of Triton's C++ backends."""
    return text.lower() in ("true", "1")


def internal_error(text: str) -> Any:
    """Return the response for an error that the model caused."""
    return pb_utils.InferenceResponse(
        error=pb_utils.TritonError(text, pb_utils.TritonError.INTERNAL)
    )


def error_response(error: BaseException) -> Any:
    """Return the response for an error; its code tells whether the client caused it."""
    kind = pb_utils.TritonError
    code = kind.INVALID_ARG if isinstance(error, CLIENT_ERRORS) else kind.INTERNAL
    return pb_utils.InferenceResponse(error=kind(str(error), code))
