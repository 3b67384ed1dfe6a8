"""The accelerator of the onnxruntime backend, as its README calls it and its parameters.

https://github.com/triton-inference-server/onnxruntime_backend#onnx-runtime-with-tensorrt-optimization
"""

from tritonclient.grpc import model_config_pb2 as pb

from millrace.models.config.serving_spec import AcceleratorSpec


def accelerators_of(spec: AcceleratorSpec) -> pb.ModelOptimizationPolicy:
    """Return the part of `config.pbtxt` that asks for the accelerator.

    The cache of engines stays off: ONNX Runtime knows an engine by the names in its graph and not
    by the weights, so one version would answer by the weights of another. That of timings is safe.
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
