"""What `serving.accelerator` comes to: in the backend, and where forms are measured."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import onnxruntime
import pytest
from google.protobuf import json_format
from onnx import TensorProto
from tritonclient.grpc import model_config_pb2 as pb

from millrace.models.common.errors import InputError
from millrace.models.config.serving_spec import AcceleratorSpec, ServingSpec
from millrace.models.inference.onnx_session import provider_options
from millrace.serving.release.trial import load_seconds
from millrace.serving.triton.backends.onnxruntime.execution_accelerator import tensorrt_options
from millrace.serving.triton.graph.triton_graph import of_text
from millrace.serving.triton.model_config import Signature, TensorSpec, latest, model_config

SIGNATURE = Signature(
    (TensorSpec("x", TensorProto.FLOAT, (-1, 4)),), (TensorSpec("y", TensorProto.FLOAT, (-1, 3)),)
)
BACKEND = Path("serving/triton/backends/onnxruntime")
CUDA = [("CUDAExecutionProvider", {"device_id": 1, "use_tf32": "0"}), "CPUExecutionProvider"]


def config_of(accelerator: Any = None) -> dict[str, Any]:
    """The configuration as a Python-based backend gets it."""
    spec = ServingSpec.model_validate({"device": "gpu", "accelerator": accelerator})
    config = model_config("m", SIGNATURE, spec, version_policy=latest())
    return json_format.MessageToDict(config, preserving_proto_field_name=True)


def config_with(*accelerators: tuple[str, dict[str, str]]) -> dict[str, Any]:
    config = pb.ModelConfig()
    for name, parameters in accelerators:
        config.optimization.execution_accelerators.gpu_execution_accelerator.add(
            name=name, parameters=parameters
        )
    return json_format.MessageToDict(config, preserving_proto_field_name=True)


@pytest.mark.parametrize(
    "spec",
    [
        AcceleratorSpec(),
        AcceleratorSpec(precision_mode="FP16"),
        AcceleratorSpec(precision_mode="BF16", max_workspace_size_bytes=2**31),
        AcceleratorSpec(precision_mode="INT8", trt_timing_cache_path="/cache"),
    ],
)
def test_forms_are_measured_with_the_options_that_the_backend_serves_them_with(
    spec: AcceleratorSpec,
) -> None:
    assert tensorrt_options(config_of(spec.model_dump())) == provider_options(spec)


def test_parameters_that_are_onnxruntimes_own_pass() -> None:
    own = {"trt_engine_cache_enable": "1", "int8_calibration_table_name": "t"}
    assert tensorrt_options(config_with(("tensorrt", own))) == {
        "trt_engine_cache_enable": "1",
        "trt_int8_calibration_table_name": "t",
    }


def test_no_accelerator_is_no_options() -> None:
    assert tensorrt_options(config_of()) is None
    assert tensorrt_options({"optimization": {"graph": {"level": 1}}}) is None


@pytest.mark.parametrize(
    ("name", "parameters", "reason"),
    [
        ("openvino", {}, "unknown Execution Accelerator 'openvino'"),
        ("tensorrt", {"precision_mode": "FP8"}, "unsupported precision mode 'FP8'"),
        ("tensorrt", {"segment_size": "1"}, "unknown parameter 'segment_size'"),
    ],
)
def test_what_the_cpp_backend_refuses_is_refused(
    name: str, parameters: dict[str, str], reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        tensorrt_options(config_with((name, parameters)))


def test_a_version_that_builds_engines_may_load_for_longer() -> None:
    accelerated = ServingSpec.model_validate({"device": "gpu", "accelerator": "tensorrt"})
    assert load_seconds(accelerated, 1) > load_seconds(ServingSpec(device="gpu"), 1)


class Refused(Exception):
    """Triton's TritonModelException."""


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The backend's module, as Triton imports it, with what Triton gives it."""
    utils = ModuleType("triton_python_backend_utils")
    utils.warnings = []  # type: ignore[attr-defined]
    utils.TritonModelException = Refused  # type: ignore[attr-defined]
    utils.Logger = type("Logger", (), {"log_warn": utils.warnings.append})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", utils)
    monkeypatch.syspath_prepend(str(BACKEND.resolve()))
    spec = importlib.util.spec_from_file_location("backend_model", BACKEND / "model.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def with_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    there = ["TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: there)


@pytest.mark.usefixtures("with_cuda")
def test_a_gpu_instance_runs_on_tensorrt_first_and_then_on_cuda(backend: ModuleType) -> None:
    config = config_of({"precision_mode": "FP16"})
    options = {"device_id": 1, "trt_max_workspace_size": "1073741824", "trt_fp16_enable": "1"}
    found = backend.providers("GPU", "1", config)
    assert found == [("TensorrtExecutionProvider", options), *CUDA]


@pytest.mark.usefixtures("with_cuda")
def test_a_gpu_instance_without_accelerator_runs_on_cuda(backend: ModuleType) -> None:
    assert backend.providers("GPU", "1", config_of()) == CUDA


def test_a_cpu_instance_passes_over_the_accelerator_and_says_so(backend: ModuleType) -> None:
    assert backend.providers("CPU", "0", config_of("tensorrt")) == ["CPUExecutionProvider"]
    assert "KIND_GPU" in backend.pb_utils.warnings[0]


def test_a_cpu_instance_without_accelerator_says_nothing(backend: ModuleType) -> None:
    assert backend.providers("CPU", "0", config_of()) == ["CPUExecutionProvider"]
    assert backend.pb_utils.warnings == []


def test_an_unknown_accelerator_makes_triton_refuse_the_version(backend: ModuleType) -> None:
    with pytest.raises(Refused, match="unknown Execution Accelerator 'other'"):
        backend.providers("GPU", "0", config_with(("other", {})))


@pytest.mark.skipif(
    "CUDAExecutionProvider" in onnxruntime.get_available_providers(), reason="there is CUDA"
)
def test_a_gpu_instance_without_cuda_is_refused(backend: ModuleType) -> None:
    with pytest.raises(Refused, match="has no CUDAExecutionProvider"):
        backend.providers("GPU", "0", config_of("tensorrt"))


def test_a_session_that_goes_on_without_tensorrt_is_refused(backend: ModuleType) -> None:
    config, cuda = config_of("tensorrt"), ["CUDAExecutionProvider", "CPUExecutionProvider"]
    with pytest.raises(Refused, match="cannot load TensorRT"):
        backend.check_loaded("GPU", config, cuda)
    backend.check_loaded("GPU", config, ["TensorrtExecutionProvider", *cuda])
    backend.check_loaded("GPU", config_of(), cuda)
    backend.check_loaded("CPU", config, ["CPUExecutionProvider"])


def test_a_gpu_instance_that_goes_on_without_cuda_is_refused(backend: ModuleType) -> None:
    with pytest.raises(Refused, match="cannot load CUDA"):
        backend.check_loaded("GPU", config_of(), ["CPUExecutionProvider"])


def test_a_model_of_text_is_refused_with_an_accelerator() -> None:
    read = TensorSpec("input_ids", TensorProto.INT64, (-1, -1), "rows")
    given = TensorSpec("probabilities", TensorProto.FLOAT, (-1, 3), "rows")
    signature = of_text(Signature((read,), (given,)))
    spec = ServingSpec.model_validate({"device": "gpu", "accelerator": "tensorrt"})
    with pytest.raises(InputError, match=r"serving\.accelerator cannot serve this model"):
        model_config("m", signature, spec, version_policy=latest())
    plain = ServingSpec.model_validate({"device": "gpu"})
    config = model_config("m", signature, plain, version_policy=latest())
    assert config.backend == "text_onnxruntime"
    assert [tensor.name for tensor in config.output] == ["probabilities"]
