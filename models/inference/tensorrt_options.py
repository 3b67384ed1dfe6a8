"""The options of ONNX Runtime's TensorRT provider that serve a model as its pipeline file says.

https://onnxruntime.ai/docs/execution-providers/TensorRT-ExecutionProvider.html
"""

from millrace.models.config.serving_spec import AcceleratorSpec

FLAGS = {"FP16": "trt_fp16_enable", "BF16": "trt_bf16_enable", "INT8": "trt_int8_enable"}


def provider_options(spec: AcceleratorSpec) -> dict[str, str]:
    """Return the options by ONNX Runtime's names; Triton's backend makes the same of its own."""
    options = {"trt_max_workspace_size": str(spec.max_workspace_size_bytes)}
    if spec.precision_mode in FLAGS:
        options[FLAGS[spec.precision_mode]] = "1"
    if spec.trt_timing_cache_path is not None:
        options["trt_timing_cache_enable"] = "1"
        options["trt_timing_cache_path"] = spec.trt_timing_cache_path
    return options
