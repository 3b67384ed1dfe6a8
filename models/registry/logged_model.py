"""How the models of a version are logged to MLflow, by their kind."""

from collections.abc import Mapping
from pathlib import Path
from shutil import copyfile
from typing import Any

import numpy as np

from millrace.models.inference.model_input import FEATURES, INPUT_IDS
from millrace.models.inference.onnx_session import execution_providers
from millrace.models.registry.tracking import TrackedRun
from millrace.models.registry.version_files import EVIDENCE, FORM


def log_graph(run: TrackedRun, onnx_file: Path, extra: Mapping[str, Path]) -> Any:
    """Log one ONNX file, as MLflow's own flavor `onnx` has it; return MLflow's `ModelInfo`."""
    import mlflow.onnx
    import onnx

    with np.load(extra["golden.npz"], allow_pickle=False) as golden:
        name = next(each for each in (FEATURES, INPUT_IDS) if each in golden.files)
        features, answers = golden[name], golden["answers"]
    return mlflow.onnx.log_model(
        onnx.load(onnx_file),
        name="model",
        signature=mlflow.models.infer_signature(features, answers),
        input_example=features[:2],
        save_as_external_data=False,
        extra_files=[str(extra[name]) for name in EVIDENCE["graph"]],
        pip_requirements=["onnx", "onnxruntime"],
        onnx_execution_providers=execution_providers(),
        # Else MLflow takes the run that is active in this thread, if there is one.
        run_id=run.run_id,
    )


def log_form(
    run: TrackedRun, backend: str, files: Mapping[str, Path], extra: Mapping[str, Path]
) -> Any:
    """Log the files of a language model's form; return MLflow's `ModelInfo`.

    MLflow has no flavor for them, and its general one would pickle a class of ours: what is logged
    is an MLmodel that names the backend, and the files as they are.

    Args:
        run: the open run.
        backend: which engine reads the files, the name of the flavor.
        files: the form's files, by name.
        extra: the evidence, by name.
    """
    from mlflow.models import Model

    return Model.log(
        artifact_path=None,
        name="model",
        flavor=_Form(backend, files, extra),
        flavor_name=backend,
        run_id=run.run_id,
    )


class _Form:
    """What MLflow calls a flavor: it writes a model's folder."""

    def __init__(self, backend: str, files: Mapping[str, Path], extra: Mapping[str, Path]) -> None:
        self._backend, self._files, self._extra = backend, files, extra

    def save_model(self, path: str, mlflow_model: Any) -> None:
        """Write the files and the MLmodel that describes them."""
        from mlflow.models.model import MLMODEL_FILE_NAME
        from mlflow.models.signature import ModelSignature
        from mlflow.types import ColSpec, DataType, Schema

        folder = Path(path)
        for name, file in self._files.items():
            _copy(file, folder / FORM / name)
        for name in EVIDENCE["language"]:
            _copy(self._extra[name], folder / "extra_files" / name)
        mlflow_model.signature = ModelSignature(
            inputs=Schema([ColSpec(DataType.string, "text_input")]),
            outputs=Schema([ColSpec(DataType.string, "text_output")]),
        )
        mlflow_model.add_flavor(self._backend, folder=FORM, files=sorted(self._files))
        mlflow_model.save(str(folder / MLMODEL_FILE_NAME))


def _copy(file: Path, to: Path) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    copyfile(file, to)
