"""The files of a language model's version, and their folder in MLflow."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from shutil import copyfile
from typing import TYPE_CHECKING, Any

from millrace.models.common.bounded_files import bounded_json
from millrace.models.common.errors import InputError
from millrace.models.inference.language_engine import engine_of
from millrace.models.registry.version_files import EXTRA, ModelVersion, Package

if TYPE_CHECKING:
    from mlflow.models import Model

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


def save_language_model(
    model: "Model", folder: Path, files: Mapping[str, Path], evidence: Mapping[str, Path]
) -> None:
    """Write the folder of a language model, as it is stored in MLflow.

    MLflow has no flavor for these models, and its general flavor would pickle a class of Millrace.
    So the files are stored as they are, with an MLmodel file that names the engine.
    """
    from mlflow.models.model import MLMODEL_FILE_NAME
    from mlflow.models.signature import ModelSignature
    from mlflow.types import ColSpec, DataType, Schema

    for name, file in files.items():
        _copy(file, folder / FOLDER / name)
    for name, file in evidence.items():
        _copy(file, folder / EXTRA / name)
    model.signature = ModelSignature(
        inputs=Schema([ColSpec(DataType.string, "text_input")]),
        outputs=Schema([ColSpec(DataType.string, "text_output")]),
    )
    model.add_flavor(engine_of(files), folder=FOLDER, files=sorted(files))
    model.save(str(folder / MLMODEL_FILE_NAME))


def _copy(file: Path, to: Path) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    copyfile(file, to)
