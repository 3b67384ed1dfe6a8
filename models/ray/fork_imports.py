"""The modules that Ray's workers spend their start on, for a `fork_server` to import in advance.

A worker of a training that is started by itself spends 1.3 s of a core on the first ones, an export
to ONNX 3 s on all of them. Ray cannot be among them: it reads the id of its job when it is
imported. So each job has a `fork_server` of its own, forked from the one with these modules, for
`OF_RAY_TRAIN` or `OF_RAY_DATA`. A batch job of any size has about ten workers: Ray Data counts,
places and reports by actors, each in a process of its own.
"""

OF_DATA = (
    *("numpy", "pandas", "pydantic", "pyarrow.dataset", "pyarrow.parquet"),
    *("fsspec.implementations.local", "jsonschema", "google.protobuf.json_format", "requests"),
    *("psutil", "yaml", "deltalake"),
)
OF_TORCH = ("torch", "torch.utils.data", "torch.nn.parallel")
OF_EXPORT = (
    *("onnx", "onnxscript"),
    *("torch.onnx._internal.exporter._core", "torch._inductor.compile_fx"),
)
BATCH_IMPORTS = OF_DATA
TRAINING_IMPORTS = (*OF_DATA, *OF_TORCH, *OF_EXPORT)
OF_RAY_DATA = ("ray.data", "millrace.serving.batch.actor")
OF_RAY_TRAIN = ("ray.train.torch", "millrace.models.training.network_job")
