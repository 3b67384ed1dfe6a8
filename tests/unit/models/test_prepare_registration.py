import threading

import pytest
from mlflow.utils import requirements_utils

from millrace.models.registry.mlflow_registry import prepare_registration


def test_mlflow_finds_the_packages_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """MLflow has no public function for it; this fails if a newer MLflow works otherwise."""
    monkeypatch.setattr(requirements_utils, "_MODULES_TO_PACKAGES", None)
    prepare_registration()
    for thread in threading.enumerate():
        if thread.name == "list-packages":
            thread.join()
    assert requirements_utils._MODULES_TO_PACKAGES["onnx"] == ["onnx"]
