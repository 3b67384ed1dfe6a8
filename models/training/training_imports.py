"""The modules that a training spends its start on, for a `fork_server` to import in advance.

A worker that is started by itself spends 1.3 s of a core on the first ones, an export to ONNX 3 s
on all of them. Ray cannot be among them: it reads the id of its job when it is imported. So each
job has a `fork_server` of its own, forked from the one with these modules, for `OF_RAY_TRAIN`.
"""

OF_WORKERS = (
    *("numpy", "torch", "torch.utils.data", "torch.nn.parallel", "pandas", "pydantic"),
    *("pyarrow.dataset", "pyarrow.parquet", "fsspec.implementations.local", "jsonschema"),
    *("google.protobuf.json_format", "requests", "psutil", "yaml", "deltalake"),
)
OF_RAY_TRAIN = ("ray.train.torch", "millrace.models.training.network_job")
OF_EXPORT = (
    *("onnx", "onnxscript"),
    *("torch.onnx._internal.exporter._core", "torch._inductor.compile_fx"),
)
TRAINING_IMPORTS = (*OF_WORKERS, *OF_EXPORT)
