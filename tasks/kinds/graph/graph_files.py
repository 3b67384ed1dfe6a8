"""The files of a `graph` version, which is one ONNX file, and their folder in MLflow."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from millrace.models.common.arrays import Array
from millrace.models.common.bounded_files import bounded_arrays, bounded_json
from millrace.models.common.digest import ONNX_FILE
from millrace.models.common.errors import InputError
from millrace.models.inference.features import TEXT, Encoding, text_request
from millrace.models.inference.model_input import FEATURES, INPUT_IDS
from millrace.models.inference.onnx_session import execution_providers
from millrace.models.registry.version_files import ModelVersion, Package

if TYPE_CHECKING:
    from mlflow.models import Model

ENCODING, GOLDEN = "encoding.json", "golden.npz"


@dataclass(frozen=True)
class GraphFiles:
    """The files of a fetched version of the kind `graph`.

    Attributes:
        package: the fetched files.
    """

    package: Package

    @property
    def version(self) -> ModelVersion:
        """The model version."""
        return self.package.version

    @property
    def model(self) -> Path:
        """The ONNX file."""
        return self.package.files[ONNX_FILE]

    @cached_property
    def encoding(self) -> Encoding:
        """The encoding of rows as tensors."""
        with self.package.reading(ENCODING):
            return Encoding.from_json(self.package.text(ENCODING))

    def golden(self) -> tuple[Array, Array]:
        """Return the golden batch and PyTorch's answers to it."""
        name = self.encoding.input.name
        with self.package.reading(GOLDEN):
            arrays = bounded_arrays(self.package.folder / GOLDEN)
            return arrays[name], arrays["answers"]

    def golden_request(self) -> dict[str, Array]:
        """Return the golden batch as a client sends it."""
        tokenizer = self.encoding.tokenizer
        with self.package.reading(GOLDEN):
            arrays = bounded_arrays(self.package.folder / GOLDEN)
            if tokenizer is None:
                return {FEATURES: arrays[FEATURES]}
            return text_request(bounded_json(str(arrays[TEXT].item())))


def graph_files(package: Package) -> GraphFiles:
    """Return the files of a version of the kind `graph`.

    Raises:
        InputError: the version is of another kind.
    """
    if ONNX_FILE in package.files:
        return GraphFiles(package)
    raise InputError(
        f"{package.version.model} version {package.version.version} is a "
        f"{package.version.kind.name} model",
        valid="a model that predicts a class or a number from rows",
        hint="name another model",
    )


def save_graph(
    model: "Model", folder: Path, files: Mapping[str, Path], evidence: Mapping[str, Path]
) -> None:
    """Write the folder of a model of one ONNX file, in MLflow's flavor `onnx`."""
    import mlflow.onnx
    import onnx
    from mlflow.models import infer_signature

    with np.load(evidence[GOLDEN], allow_pickle=False) as golden:
        name = next(each for each in (FEATURES, INPUT_IDS) if each in golden.files)
        features, answers = golden[name], golden["answers"]
    mlflow.onnx.save_model(
        onnx.load(files[ONNX_FILE]),
        str(folder),
        mlflow_model=model,
        signature=infer_signature(features, answers),
        input_example=features[:2],
        save_as_external_data=False,
        extra_files=[str(file) for file in evidence.values()],
        pip_requirements=["onnx", "onnxruntime"],
        onnx_execution_providers=execution_providers(),
    )
