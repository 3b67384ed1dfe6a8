from dataclasses import replace
from typing import Any

import numpy as np
import onnxruntime
import pytest
from sklearn.metrics import accuracy_score

from millrace.export.onnx import measure_graph
from millrace.export.onnx.graph_certificate import GraphStage
from millrace.export.onnx.measure_graph import Evidence, gather_evidence, measure
from millrace.export.select import Gates, apply_gates
from millrace.models.common.digest import digest_of
from millrace.models.common.subprocess_runner import Limits, run_in_subprocess
from millrace.models.inference.onnx_session import CPU, CUDA, OnnxSession

GATES = Gates(max_loss=0.01)
LIMITS = Limits(120.0, 16 << 30)


@pytest.fixture(scope="module")
def evidence(exported: Any) -> Evidence:
    test = exported.rows(100)
    right = exported.answer(test).argmax(axis=1)
    target = np.where(np.arange(100) < 90, right, (right + 1) % 3)
    return gather_evidence(
        *(exported.served, exported.objective, exported.read, test, target), golden_rows=32
    )


def test_the_golden_batch_is_the_first_test_rows(evidence: Evidence, exported: Any) -> None:
    np.testing.assert_array_equal(evidence.golden, exported.rows(100)[:32])


def test_pytorchs_answers_are_kept(evidence: Evidence, exported: Any) -> None:
    np.testing.assert_allclose(evidence.test_answers, exported.answer(evidence.test), atol=1e-6)
    np.testing.assert_allclose(evidence.golden_answers, evidence.test_answers[:32], atol=1e-6)


def test_pytorchs_metric_is_that_of_the_test_split(evidence: Evidence) -> None:
    exact = accuracy_score(evidence.target, evidence.test_answers.argmax(axis=1))
    assert evidence.metric == pytest.approx(exact)
    assert evidence.metric == pytest.approx(0.9)


def test_pytorch_is_a_stage_that_lost_nothing(evidence: Evidence) -> None:
    assert evidence.stage == GraphStage("pytorch", 0.0, 0.0, evidence.metric, 0.0)


def test_fewer_test_rows_than_asked_for_are_all_golden(exported: Any) -> None:
    rows = exported.rows(5)
    gathered = gather_evidence(
        *(exported.served, exported.objective, exported.read, rows, np.zeros(5)), golden_rows=32
    )
    assert len(gathered.golden) == 5


def test_a_faithful_form_passes(exported: Any, evidence: Evidence) -> None:
    candidate = measure("fp32", exported.path, evidence, exported.objective, 1, LIMITS)
    assert apply_gates(candidate, GATES).passed
    assert candidate.stage is not None
    assert candidate.stage.golden_difference < 1e-5
    assert candidate.stage.metric_loss == 0.0


def test_a_form_is_measured_by_its_file(exported: Any, evidence: Evidence) -> None:
    candidate = measure("fp32", exported.path, evidence, exported.objective, 1, LIMITS)
    assert candidate.digest == digest_of(exported.path)
    assert candidate.size_bytes == exported.path.stat().st_size
    speed = candidate.speed
    assert speed is not None
    assert 0 < speed.p50_ms <= speed.p99_ms < 1000
    assert speed.rows_per_second > 100
    assert 2**24 < speed.peak_memory_bytes < 2**28  # and not what this process holds, with torch


@pytest.mark.parametrize("gpu", [False, True])
def test_a_form_is_measured_where_it_will_be_served(
    exported: Any, evidence: Evidence, gpu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def run(*args: Any, **options: Any) -> bytes:
        asked.extend(args[1])
        return run_in_subprocess(*args, **options)

    monkeypatch.setattr(measure_graph, "run_in_subprocess", run)
    measure("fp32", exported.path, evidence, exported.objective, 1, LIMITS, gpu=gpu)
    assert ("--gpu" in asked) is gpu


def test_a_session_runs_on_the_cpu_where_that_is_asked(
    exported: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def session(*args: Any, providers: list[Any], **options: Any) -> onnxruntime.InferenceSession:
        asked.append(providers[0])
        return opened(*args, providers=[CPU], **options)

    opened = onnxruntime.InferenceSession
    monkeypatch.setattr(onnxruntime, "InferenceSession", session)
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [CUDA, CPU])
    monkeypatch.setattr(onnxruntime, "preload_dlls", lambda: None)
    OnnxSession(exported.path, gpu=False)
    OnnxSession(exported.path)
    assert asked == [CPU, (CUDA, {"use_tf32": "0"})]


def test_a_form_that_lost_too_much_is_refused(exported: Any, evidence: Evidence) -> None:
    better = replace(evidence, metric=evidence.metric + 0.05)
    candidate = measure("fp32", exported.path, better, exported.objective, 1, LIMITS)
    reason = apply_gates(candidate, GATES).reason
    assert reason == "metric loss 5.26% is more than the limit of 1.00%"


def test_the_speed_alone_needs_no_test_split(exported: Any) -> None:
    speed = measure_graph.measure_speed(exported.path, exported.read, exported.rows(64), 1, LIMITS)
    assert 0 < speed.p50_ms <= speed.p99_ms
    assert speed.rows_per_second > 0
    assert speed.peak_memory_bytes > 2**20
