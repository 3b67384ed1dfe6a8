"""`config.pbtxt`, written with Triton's own protobuf classes.

NVIDIA's container and the embedded server use the same file, because the backend is called
`onnxruntime` in both and has the parameter names of the C++ backend. The backend for text models
is Python-based in both.

The parameters of the TensorRT accelerator are described at
https://github.com/triton-inference-server/onnxruntime_backend#onnx-runtime-with-tensorrt-optimization
"""

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from google.protobuf import text_format
from onnx import TensorProto
from tritonclient.grpc import model_config_pb2 as pb

from millrace.models.common.errors import InputError, WorkError
from millrace.models.config.serving_spec import AcceleratorSpec, ServingSpec

DYNAMIC = -1
TEXT_BACKEND = "text_onnxruntime"


@dataclass(frozen=True)
class TensorSpec:
    """One input or output of a model.

    Attributes:
        name: the tensor's name in the ONNX graph.
        elem_type: the tensor's `onnx.TensorProto.DataType`.
        shape: every dimension, including the batch; -1 for a dynamic dimension.
        batch_symbol: the symbolic name of a dynamic first dimension; empty without one.
    """

    name: str
    elem_type: int
    shape: tuple[int, ...]
    batch_symbol: str = ""


@dataclass(frozen=True)
class Signature:
    """The inputs and outputs of a model, in order, and the backend that serves it.

    Inputs and outputs are those of the ONNX graph, unless the backend runs a step before the graph,
    such as a tokenizer.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    backend: str = "onnxruntime"

    @property
    def batches(self) -> bool:
        """Whether requests can be batched: every first dimension is the same dynamic batch."""
        symbols = {spec.batch_symbol for spec in self.inputs if spec.batch_symbol}
        specs = self.inputs + self.outputs
        return len(symbols) <= 1 and all(spec.shape[:1] == (DYNAMIC,) for spec in specs)

    @property
    def served(self) -> tuple[object, ...]:
        """The properties that one `config.pbtxt` sets for all loaded versions of a model.

        Versions can be loaded together if these properties are equal.
        """
        tensors = (
            frozenset((spec.name, spec.elem_type, spec.shape) for spec in specs)
            for specs in (self.inputs, self.outputs)
        )
        return (self.backend, *tensors)


def accelerators_of(spec: AcceleratorSpec) -> pb.ModelOptimizationPolicy:
    """Return the part of `config.pbtxt` that enables the accelerator.

    The engine cache stays off because ONNX Runtime identifies an engine by the names in its graph,
    not by the weights, so one version could answer with the weights of another. The timing cache is
    safe.
    """
    parameters = {
        "precision_mode": spec.precision_mode,
        "max_workspace_size_bytes": str(spec.max_workspace_size_bytes),
    }
    if spec.trt_timing_cache_path is not None:
        parameters["trt_timing_cache_enable"] = "1"
        parameters["trt_timing_cache_path"] = spec.trt_timing_cache_path
    policy = pb.ModelOptimizationPolicy()
    policy.execution_accelerators.gpu_execution_accelerator.add(
        name=spec.name, parameters=parameters
    )
    return policy


LABELS = "labels.txt"
TYPES: Mapping[int, int] = {
    TensorProto.BOOL: pb.TYPE_BOOL,
    TensorProto.UINT8: pb.TYPE_UINT8,
    TensorProto.UINT16: pb.TYPE_UINT16,
    TensorProto.UINT32: pb.TYPE_UINT32,
    TensorProto.UINT64: pb.TYPE_UINT64,
    TensorProto.INT8: pb.TYPE_INT8,
    TensorProto.INT16: pb.TYPE_INT16,
    TensorProto.INT32: pb.TYPE_INT32,
    TensorProto.INT64: pb.TYPE_INT64,
    TensorProto.FLOAT16: pb.TYPE_FP16,
    TensorProto.FLOAT: pb.TYPE_FP32,
    TensorProto.DOUBLE: pb.TYPE_FP64,
    TensorProto.STRING: pb.TYPE_STRING,
}

KINDS = {"cpu": pb.ModelInstanceGroup.KIND_CPU, "gpu": pb.ModelInstanceGroup.KIND_GPU}


def latest(count: int = 1) -> pb.ModelVersionPolicy:
    """Return the policy to serve the `count` highest version numbers on disk."""
    return pb.ModelVersionPolicy(latest=pb.ModelVersionPolicy.Latest(num_versions=count))


def specific(versions: Collection[int]) -> pb.ModelVersionPolicy:
    """Return the policy to serve these versions; the highest answers requests without a version."""
    return pb.ModelVersionPolicy(specific=pb.ModelVersionPolicy.Specific(versions=sorted(versions)))


def model_config(
    name: str,
    signature: Signature,
    serving: ServingSpec,
    *,
    version_policy: pb.ModelVersionPolicy,
    labels: Sequence[str] = (),
    dynamic_batching: bool = True,
    parameters: Mapping[str, str] | None = None,
) -> pb.ModelConfig:
    """Return the configuration of a model.

    A model whose first dimensions are not the same dynamic batch gets `max_batch_size` 0: Triton
    does not batch its requests.

    Args:
        name: the model's name, which is also its folder.
        signature: the inputs and outputs of the model.
        serving: the settings of batching, instances, threads and device.
        version_policy: `latest(n)` or `specific(versions)`.
        labels: class names; set on the outputs that have one element per label.
        dynamic_batching: whether to merge waiting requests into one execution.
        parameters: further parameters of the onnxruntime backend, by the backend's names.

    Raises:
        InputError: Triton cannot serve a tensor's type, or the accelerator cannot serve a dynamic
            dimension.
    """
    size = serving.max_batch_size if signature.batches else 0
    config = pb.ModelConfig(
        name=name,
        backend=signature.backend,
        max_batch_size=size,
        version_policy=version_policy,
        input=[_input(spec, size) for spec in signature.inputs],
        output=[_output(spec, size, labels) for spec in signature.outputs],
        instance_group=[
            pb.ModelInstanceGroup(count=serving.instance_count, kind=KINDS[serving.device])
        ],
        model_warmup=_warmups(signature, size),
    )
    if size and dynamic_batching:
        delay, preferred = serving.max_queue_delay_microseconds, serving.preferred_batch_size
        sizes = [preferred] if preferred is not None and preferred < size else []
        config.dynamic_batching.CopyFrom(
            pb.ModelDynamicBatching(preferred_batch_size=sizes, max_queue_delay_microseconds=delay)
        )
    if serving.accelerator is not None:
        _require_fixed_rows(signature, size)
        config.optimization.CopyFrom(accelerators_of(serving.accelerator))
    values = {"intra_op_thread_count": str(serving.intra_op_thread_count), **(parameters or {})}
    for key, value in values.items():
        config.parameters[key].string_value = value
    return config


def loaded_anew() -> dict[str, str]:
    """Return a parameter that differs each time, because Triton reloads only a changed config."""
    return {"loaded_anew": f"{time.time():.3f}"}


def to_text(config: pb.ModelConfig) -> str:
    """Return the contents of `config.pbtxt`."""
    return str(text_format.MessageToString(config))


def from_text(text: str) -> pb.ModelConfig:
    """Parse the contents of a `config.pbtxt`.

    Raises:
        WorkError: the text is not a model configuration.
    """
    try:
        return text_format.Parse(text, pb.ModelConfig())
    except text_format.ParseError as error:
        raise WorkError(
            "a model's config.pbtxt cannot be read",
            seen=error,
            valid="a Triton model configuration",
            hint="delete this file from the model's folder in the model repository; the next "
            "release writes the file again",
        ) from error


def _dims(spec: TensorSpec, size: int) -> tuple[int, ...]:
    """Return the shape without the batch dimension, which only a batched model (`size` > 0) has."""
    return spec.shape[1:] if size else spec.shape


def _type(spec: TensorSpec) -> int:
    if spec.elem_type not in TYPES:
        raise InputError(
            f"the type of the tensor {spec.name!r} cannot be served",
            seen=TensorProto.DataType.Name(spec.elem_type),
            valid=", ".join(TensorProto.DataType.Name(known) for known in TYPES),
            hint="cast the tensor to a valid type inside the model",
        )
    return TYPES[spec.elem_type]


def _input(spec: TensorSpec, size: int) -> pb.ModelInput:
    dims = _dims(spec, size)
    tensor = pb.ModelInput(name=spec.name, data_type=_type(spec), dims=dims or (1,))
    if not dims:  # Triton has no empty dims: clients see [1], which is reshaped to []
        tensor.reshape.CopyFrom(pb.ModelTensorReshape())
    return tensor


def _output(spec: TensorSpec, size: int, labels: Sequence[str]) -> pb.ModelOutput:
    dims = _dims(spec, size)
    tensor = pb.ModelOutput(name=spec.name, data_type=_type(spec), dims=dims or (1,))
    if not dims:
        tensor.reshape.CopyFrom(pb.ModelTensorReshape())
    if labels and dims == (len(labels),):
        tensor.label_filename = LABELS
    return tensor


def _require_fixed_rows(signature: Signature, size: int) -> None:
    """Raise an error if an input has a dynamic dimension other than the batch, or is text.

    No warm-up could build all TensorRT engines of such a model. While requests wait, an engine
    would be built for every input whose size is outside the range of the earlier sizes.
    """
    for spec in signature.inputs:
        if signature.backend == TEXT_BACKEND or DYNAMIC in _dims(spec, size):
            raise InputError(
                "serving.accelerator cannot serve this model",
                seen=f"the input {spec.name} of shape {list(spec.shape)}",
                valid="an ONNX graph whose only dynamic dimension is the batch",
                hint="remove serving.accelerator",
            )


def _warmups(signature: Signature, size: int) -> list[pb.ModelWarmup]:
    """Return warm-ups with zeros: one of a single row, and one of a full batch.

    There are none if a dimension other than the batch is dynamic, because no length of it is safe.
    For example, an image of one pixel may fail in a pooling layer, and then Triton would refuse the
    version.
    """
    if any(DYNAMIC in _dims(spec, size) for spec in signature.inputs):
        return []
    inputs = {
        spec.name: pb.ModelWarmup.Input(
            data_type=_type(spec), dims=_dims(spec, size) or (1,), zero_data=True
        )
        for spec in signature.inputs
    }
    return [
        pb.ModelWarmup(name=f"zeros_{rows}", batch_size=rows, inputs=inputs)
        for rows in sorted({1, max(size, 1)})
    ]
