"""What a reader of a release is told where a version was certified elsewhere."""

import pytest

from millrace.export.onnx.graph_certificate import GraphCertificate, GraphStage
from millrace.models.common.hardware import EngineFingerprint, Gpu, this_machine
from millrace.tasks.kinds.graph import graph_evidence
from millrace.tasks.kinds.graph.graph_evidence import _caution

TIES = EngineFingerprint(Gpu("NVIDIA H200", "9.0", "570.86.10"), "11.4.0.106", "13")
OTHER = EngineFingerprint(Gpu("NVIDIA H200", "9.0", "580.1"), "11.4.0.106", "13")


def certificate(ties: str = "", kind: str = "") -> GraphCertificate:
    stage = GraphStage("onnx-fp16", 0.1, ties=ties)
    return GraphCertificate(
        model="m",
        candidate="onnx-fp16",
        digest="d",
        dataset="n",
        dataset_version=0,
        dataset_digest="e",
        test_rows=1,
        golden_rows=1,
        metric_name="accuracy",
        max_metric_loss=0.01,
        stages=(stage,),
        passed=True,
        machine="an H200",
        machine_kind=kind or this_machine().kind,
    )


def test_a_version_of_this_kind_of_machine_needs_no_caution() -> None:
    assert _caution(certificate()) == ""


def test_a_version_of_another_kind_of_machine_is_told() -> None:
    assert "chosen on an H200; this machine has" in _caution(certificate(kind="another"))


def test_the_same_gpu_driver_and_tensorrt_need_no_caution(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_evidence, "this_fingerprint", lambda: TIES)
    assert _caution(certificate(str(TIES))) == ""


@pytest.mark.parametrize(("here", "told"), [(OTHER, "driver 580.1"), (None, this_machine().kind)])
def test_whatever_an_engine_is_tied_to_and_is_not_here_is_told(
    monkeypatch: pytest.MonkeyPatch, here: EngineFingerprint | None, told: str
) -> None:
    monkeypatch.setattr(graph_evidence, "this_fingerprint", lambda: here)
    found = _caution(certificate(str(TIES)))
    assert found.startswith(f"it was certified with {TIES}")
    assert told in found.partition("this machine has")[2]
