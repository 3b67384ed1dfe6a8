"""The model in MLflow's scoring server: `serve_mlflow.py MODEL PORT WAY`.

It saves the model in MLflow's format in the current folder, and becomes `mlflow models serve`.
"""

import os
import sys

import mlflow.onnx
import numpy as np
import onnx
from mlflow.models import ModelSignature
from mlflow.types import Schema, TensorSpec

FOLDER = "model"
ONE_THREAD = {"intra_op_num_threads": 1, "inter_op_num_threads": 1}


def main(model: str, port: str, way: str) -> None:
    """Become MLflow's server; there is one way."""
    graph = onnx.load(model)
    width = graph.graph.input[0].type.tensor_type.shape.dim[1].dim_value
    rows = TensorSpec(np.dtype(np.float32), (-1, width), "x")
    mlflow.onnx.save_model(
        graph,
        FOLDER,
        signature=ModelSignature(inputs=Schema([rows])),
        pip_requirements=[],
        onnx_execution_providers=["CPUExecutionProvider"],
        onnx_session_options=ONE_THREAD,
    )
    argv = [sys.executable, "-m", "mlflow", "models", "serve", "--model-uri", FOLDER]
    argv += ["--env-manager", "local", "--host", "127.0.0.1", "--port", port, "--workers", "1"]
    os.execv(sys.executable, argv)


if __name__ == "__main__":
    main(*sys.argv[1:])
