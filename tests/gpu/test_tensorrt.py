"""TensorRT on an NVIDIA GPU; `make test` leaves these out. They have not been run yet.

They want `pip install 'millrace[gpu,tensorrt]'`, with `modelopt` beside them for its variants,
and a CUDA build of torch.
"""

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from millrace.export.onnx.graph_variants import ENGINES, VARIANTS, installed_packages, lacking
from millrace.export.tensorrt.engine import EngineSession
from millrace.models.common.errors import InputError, WorkError
from millrace.models.common.hardware import this_fingerprint, this_gpu, this_machine
from millrace.models.config.serving_spec import AcceleratorSpec
from millrace.models.inference.onnx_session import TENSORRT, OnnxSession, provider_options

pytestmark = pytest.mark.gpu
NEAR = {"tensorrt-fp32": 1e-4, "tensorrt-fp16": 0.01, "tensorrt-bf16": 0.05}
QUANTIZED = 0.3
"""Of a probability: one row near a border may go far, which the metric tells apart from a fault."""


def skip_if_lacking(name: str) -> None:
    """Skip a variant that this GPU is too old for, or whose package is not there."""
    for variant in (ENGINES[name], VARIANTS.get(ENGINES[name].source)):
        if variant and (reason := lacking(variant, this_gpu(), installed_packages())):
            pytest.skip(reason)


def test_this_machine_has_a_gpu_and_tensorrt_that_engines_are_tied_to() -> None:
    ties = this_fingerprint()
    assert ties is not None
    assert ties.gpu.name
    assert ties.tensorrt


@pytest.mark.parametrize("name", sorted(ENGINES))
def test_an_engine_answers_nearly_as_pytorch_does(digits: Any, name: str, tmp_path: Path) -> None:
    skip_if_lacking(name)
    if name == "tensorrt-int4-modelopt":
        pytest.skip("the perceptron has Gemm layers, which have no int4 variant")
    path = digits.exporter(tmp_path).make(name)
    assert this_fingerprint().slug in path.name
    session, evidence = EngineSession(path), digits.evidence()
    for rows in (1, 3, 32, 64):
        answers = session.run({"features": digits.test[:rows]})
        wanted = evidence.test_answers[:rows]
        np.testing.assert_allclose(answers, wanted, atol=NEAR.get(name, QUANTIZED))


@pytest.mark.parametrize("name", sorted(ENGINES.keys() - {"tensorrt-int4-modelopt"}))
def test_an_engine_is_a_row_with_figures_and_what_it_is_tied_to(
    digits: Any, name: str, tmp_path: Path
) -> None:
    skip_if_lacking(name)
    (found,) = digits.exporter(tmp_path, name).candidates(digits.evidence())
    assert found.reason is None
    assert not found.is_served
    assert found.stage.ties == str(this_fingerprint())
    assert found.stage.metric_loss <= 0.01
    assert found.speed.rows_per_second > 0


def test_a_batch_outside_the_profile_is_told(digits: Any, tmp_path: Path) -> None:
    session = EngineSession(digits.exporter(tmp_path).make("tensorrt-fp32"))
    with pytest.raises(WorkError, match="does not accept this shape of the input features"):
        session.run({"features": np.zeros((65, 64), np.float32)})


def test_a_file_that_is_no_engine_is_told(tmp_path: Path) -> None:
    (tmp_path / "e.plan").write_bytes(b"no engine")
    with pytest.raises(InputError, match="not a TensorRT engine that runs on this machine"):
        EngineSession(tmp_path / "e.plan")


def test_the_timing_cache_is_kept_and_read_again(digits: Any, tmp_path: Path) -> None:
    exporter = digits.exporter(tmp_path)
    exporter.make("tensorrt-fp32").unlink()
    (cache,) = (tmp_path / "timing_caches").iterdir()
    assert cache.stat().st_size > 0
    exporter.make("tensorrt-fp32")
    assert cache.stat().st_size > 0


@pytest.mark.parametrize("precision", ["FP32", "FP16", "BF16"])
def test_onnxruntime_accelerates_with_tensorrt(digits: Any, precision: str, tmp_path: Path) -> None:
    path, spec = (
        digits.exporter(tmp_path).make("onnx-fp32"),
        AcceleratorSpec.model_validate(
            {"precision_mode": precision, "trt_timing_cache_path": str(tmp_path)}
        ),
    )
    session = OnnxSession(path, 1, provider_options(spec))
    answers = session.answer(digits.test[:64])
    wanted = digits.evidence().test_answers[:64]
    np.testing.assert_allclose(answers, wanted, atol=0.05)


def test_onnxruntime_accelerates_int8_that_is_in_the_graph(digits: Any, tmp_path: Path) -> None:
    path = digits.exporter(tmp_path).make("onnx-int8-symmetric")
    options = provider_options(AcceleratorSpec(precision_mode="INT8"))
    answers = OnnxSession(path, 1, options).answer(digits.test[:64])
    same = answers.argmax(axis=1) == digits.evidence().test_answers[:64].argmax(axis=1)
    assert same.mean() > 0.95


def test_forms_are_measured_as_they_are_served(digits: Any, tmp_path: Path) -> None:
    options = provider_options(AcceleratorSpec(precision_mode="FP16"))
    exporter = digits.exporter(tmp_path, "onnx-fp32", tensorrt=options)
    (found,) = exporter.candidates(digits.evidence())
    assert found.reason is None
    assert found.stage.ties == str(this_fingerprint())


def test_programs_that_limit_their_memory_can_use_the_gpu(digits: Any, tmp_path: Path) -> None:
    assert TENSORRT in onnxruntime.get_available_providers()
    (found,) = digits.exporter(tmp_path, "onnx-fp32").candidates(digits.evidence())
    assert found.reason is None
    assert this_machine().gpu
