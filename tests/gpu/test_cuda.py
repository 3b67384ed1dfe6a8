"""ONNX Runtime and Triton on an NVIDIA GPU; `make test` leaves these out.

They want `pip install 'millrace[gpu]'` in place of onnxruntime.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from millrace.models.common.installation import Installation
from millrace.models.inference.onnx_session import CUDA, OnnxSession
from millrace.serving.release.apply import Request
from millrace.serving.release.ledger import Ledger
from millrace.serving.release.outcome import raise_first_error
from millrace.serving.release.reconcile import reconcile
from millrace.serving.triton import server
from millrace.serving.triton.repository import Repository
from tests.integration.file_registry import FileRegistry
from tests.integration.ports import free_endpoint

pytestmark = pytest.mark.gpu
NEAR = {"onnx-fp32": 1e-3, "onnx-fp16": 0.01, "onnx-bf16": 0.05, "onnx-fp8": 0.3}


@pytest.mark.parametrize("name", NEAR)
def test_a_variant_answers_on_cuda_nearly_as_pytorch_does(
    digits: Any, name: str, tmp_path: Path
) -> None:
    session = OnnxSession(digits.exporter(tmp_path).make(name), 1)
    assert session._session.get_providers()[0] == CUDA
    answers = session.answer(digits.test[:64])
    np.testing.assert_allclose(answers, digits.evidence().test_answers[:64], atol=NEAR[name])


def test_candidates_are_measured_on_cuda(digits: Any, tmp_path: Path) -> None:
    exporter = digits.exporter(tmp_path, "onnx-fp32", "onnx-fp16", gpu=True)
    found = exporter.candidates(digits.evidence())
    assert [each.reason for each in found] == [None, None]
    assert all(each.stage.metric_loss <= 0.01 for each in found)


@pytest.fixture
def installation(tmp_path: Path) -> Installation:
    return Installation(tmp_path / "home", "", "").prepared()


def test_triton_serves_on_kind_gpu(digits: Any, installation: Installation, tmp_path: Path) -> None:
    path, rows = digits.exporter(tmp_path).make("onnx-fp32"), digits.test[:32]
    registry = FileRegistry(tmp_path)
    registry.register("digits", 1, path.read_bytes(), {"features": rows}, device="gpu")
    registry.champions["digits"] = 1
    repository = Repository(installation.model_repository, installation.staging)
    ledger = Ledger(str(tmp_path / "releases"))
    with server.running(installation, free_endpoint()) as client:
        outcomes = reconcile(registry, ledger, repository, (client.endpoint,), Request("a test"))
        raise_first_error(outcomes)
        (answers,) = client.predict("digits", {"features": rows}).values()
    np.testing.assert_allclose(answers, digits.evidence().test_answers[:32], atol=1e-3)
