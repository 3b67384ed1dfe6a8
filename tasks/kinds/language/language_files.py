"""The files of a language model's version, and their logging to MLflow."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from shutil import copyfile
from typing import Any

from millrace.models.common.bounded_files import bounded_json
from millrace.models.common.errors import InputError
from millrace.models.inference.language_engine import engine_of
from millrace.models.registry.tracking import TrackedRun
from millrace.models.registry.version_files import EXTRA, ModelVersion, Package

FOLDER = "form"
"""The folder of the model's files in a version."""
GOLDEN = "golden.json"


@dataclass(frozen=True)
class LanguageFiles:
    """The files of a fetched version of a language model.

    Attributes:
        package: the fetched files.
    """

    package: Package

    @property
    def version(self) -> ModelVersion:
        """The model version."""
        return self.package.version

    @property
    def folder(self) -> Path:
        """The folder of the model's files."""
        return self.package.folder / FOLDER

    def golden(self) -> Mapping[str, Any]:
        """Return the golden prompts and the certified answers."""
        return dict(bounded_json(self.package.text(GOLDEN)))


def language_files(package: Package) -> LanguageFiles:
    """Return the files of a version of a language model.

    Raises:
        InputError: the version is not a language model.
    """
    if (package.folder / GOLDEN).exists():
        return LanguageFiles(package)
    raise InputError(
        f"{package.version.model} version {package.version.version} is not a language model",
        valid="a version of the family causal_lm",
        hint="name another model",
    )


def log_language_model(
    run: TrackedRun, files: Mapping[str, Path], evidence: Mapping[str, Path]
) -> Any:
    """Log the files of a language model; return MLflow's `ModelInfo`.

    MLflow has no flavor for these models, and its general flavor would pickle a class of Millrace.
    So the files are logged as they are, with an MLmodel file that names the engine.

    Args:
        run: the open run.
        files: the model's files, by name.
        evidence: the evidence, by name.
    """
    from mlflow.models import Model

    engine = engine_of(files)
    return Model.log(
        artifact_path=None,
        name="model",
        flavor=_Flavor(engine, files, evidence),
        flavor_name=engine,
        run_id=run.run_id,
    )


class _Flavor:
    """An MLflow flavor, which writes a model's folder."""

    def __init__(
        self, backend: str, files: Mapping[str, Path], evidence: Mapping[str, Path]
    ) -> None:
        self._backend, self._files, self._evidence = backend, files, evidence

    def save_model(self, path: str, mlflow_model: Any) -> None:
        """Write the files and the MLmodel that describes them."""
        from mlflow.models.model import MLMODEL_FILE_NAME
        from mlflow.models.signature import ModelSignature
        from mlflow.types import ColSpec, DataType, Schema

        folder = Path(path)
        for name, file in self._files.items():
            _copy(file, folder / FOLDER / name)
        for name, file in self._evidence.items():
            _copy(file, folder / EXTRA / name)
        mlflow_model.signature = ModelSignature(
            inputs=Schema([ColSpec(DataType.string, "text_input")]),
            outputs=Schema([ColSpec(DataType.string, "text_output")]),
        )
        mlflow_model.add_flavor(self._backend, folder=FOLDER, files=sorted(self._files))
        mlflow_model.save(str(folder / MLMODEL_FILE_NAME))


def _copy(file: Path, to: Path) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    copyfile(file, to)
