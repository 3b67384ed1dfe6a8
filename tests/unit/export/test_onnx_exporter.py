import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from torch import Tensor, nn

from millrace.export.language.language_variants import LANGUAGE_VARIANTS
from millrace.export.onnx import onnx_exporter as module
from millrace.export.onnx.graph_certificate import GraphCandidate, GraphSpeed, GraphStage
from millrace.export.onnx.graph_variants import ENGINES, FP32, MIXED, VARIANTS, Variant
from millrace.export.onnx.measure_graph import Evidence, gather_evidence
from millrace.export.onnx.onnx_exporter import Exporter
from millrace.models.common.arrays import Array
from millrace.models.common.digest import digest_of
from millrace.models.common.errors import TransientError, WorkError
from millrace.models.config.export_spec import ExportLimits, ExportSpec
from millrace.models.config.model_kind import all_variants
from millrace.models.families.network import Network, Served
from millrace.models.families.objective import Classification, Regression
from millrace.models.inference.features import Encoding, Feature
from tests.unit.export.conftest import exporting_here

INT8 = "onnx-int8-static"
BOTH = ExportSpec(candidates=(FP32, INT8))


def exporter_of(exported: Any, folder: Path, spec: ExportSpec = BOTH) -> Exporter:
    def calibration() -> Iterator[Array]:
        yield from (exported.rows(64, seed=seed) for seed in range(2))

    return Exporter(
        served=exported.served,
        objective=exported.objective,
        read=exported.read,
        calibration=calibration,
        validation=lambda: evidence_of(exported),
        folder=folder,
        threads=1,
        spec=spec,
    )


@pytest.fixture(scope="module")
def made(exported: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Both variants, int8 asked for first."""
    exporter = exporter_of(exported, tmp_path_factory.mktemp("forms"))
    return {name: exporter.make(name) for name in (INT8, FP32)}


def evidence_of(exported: Any) -> Evidence:
    rows = exported.rows(50)
    target = exported.answer(rows).argmax(axis=1)
    return gather_evidence(
        *(exported.served, exported.objective, exported.read, rows, target), golden_rows=8
    )


def test_a_folder_holds_the_forms_and_no_drafts(made: dict[str, Path]) -> None:
    folder = made[FP32].parent
    assert {file.name for file in folder.iterdir()} == {
        *(f"{FP32}.onnx", f"{INT8}.onnx"),
        *("calibration.npz", "commands.sh", "conversions"),
    }


@pytest.mark.parametrize("name", [FP32, INT8])
def test_loading_and_saving_a_form_keeps_its_digest(
    made: dict[str, Path], name: str, tmp_path: Path
) -> None:
    onnx.save_model(onnx.load(made[name]), tmp_path / "again.onnx")
    assert digest_of(tmp_path / "again.onnx") == digest_of(made[name])


@pytest.mark.parametrize("name", [FP32, INT8])
def test_a_form_needs_no_other_file(made: dict[str, Path], name: str) -> None:
    model = onnx.load(made[name], load_external_data=False)
    assert not any(onnx.external_data_helper.uses_external_data(i) for i in model.graph.initializer)


def test_a_form_that_is_there_is_not_made_again(made: dict[str, Path], exported: Any) -> None:
    before = made[FP32].stat().st_mtime_ns
    exporter_of(exported, made[FP32].parent).make(FP32)
    assert made[FP32].stat().st_mtime_ns == before


def test_candidates_come_measured_in_the_order_of_the_file(
    made: dict[str, Path], exported: Any
) -> None:
    spec = ExportSpec(candidates=(INT8, FP32), max_metric_loss=0.1)
    exporter = exporter_of(exported, made[FP32].parent, spec)
    found = list(exporter.candidates(evidence_of(exported)))
    assert [(c.name, c.path, c.passed) for c in found] == [
        (INT8, made[INT8], True),
        (FP32, made[FP32], True),
    ]


@pytest.mark.parametrize(
    ("size", "slo", "loss", "reason"),
    [
        (2**20, 2.0, 0.0, None),
        (2**20, None, 0.0, None),
        (2**20, 1.9, 0.0, "p99 2.00 ms is more than serving.latency_slo_ms, 1.9 ms"),
        (2**20 + 2**18, 2.0, 0.0, "its size 1.25 MiB is more than export.max_size_mib, 1 MiB"),
        (2**30, None, 0.0, "its size 1,024.00 MiB is more than export.max_size_mib, 1 MiB"),
        (2**30, 1.9, 0.025, "metric loss 2.50% is more than the limit of 1.00%"),
    ],
)
def test_a_form_that_loses_too_much_or_is_too_large_or_too_slow_is_refused(
    exported: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    size: int,
    slo: float | None,
    loss: float,
    reason: str | None,
) -> None:
    def measured(name: str, path: Path, *_: object, **__: object) -> GraphCandidate:
        stage, speed = GraphStage(name, 0.0, 0.0, 0.9, loss), GraphSpeed(1.0, 2.0, 1.0, 1)
        return GraphCandidate(name, path, "d", size, speed, stage)

    monkeypatch.setattr(module, "measure", measured)
    monkeypatch.setattr(Exporter, "make", lambda self, name: tmp_path / name)
    spec = ExportSpec(candidates=(FP32,), max_size_mib=1, max_metric_loss=0.01)
    nothing: Any = None
    (found,) = exporter_of(exported, tmp_path, spec).candidates(nothing, slo)
    assert found.reason == reason


@pytest.mark.parametrize("p99", [None, float("nan")])
def test_a_latency_that_is_not_known_is_too_long(
    exported: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, p99: float | None
) -> None:
    speed = None if p99 is None else GraphSpeed(p99, p99, 1.0, 1)
    stage = GraphStage(FP32, 0.0, 0.0, 0.9, 0.0)
    found = GraphCandidate(FP32, tmp_path / FP32, speed=speed, stage=stage)
    monkeypatch.setattr(module, "measure", lambda *_, **__: found)
    monkeypatch.setattr(Exporter, "make", lambda self, name: tmp_path / name)
    nothing: Any = None
    exporter = exporter_of(exported, tmp_path, ExportSpec(candidates=(FP32,)))
    (slow,) = exporter.candidates(nothing, 5.0)
    told = "unknown" if p99 is None else "nan ms"
    assert slow.reason == f"p99 {told} is more than serving.latency_slo_ms, 5 ms"
    (passed,) = exporter.candidates(nothing)
    assert passed.passed


class _Squares(nn.Module):
    def forward(self, rows: Tensor) -> Tensor:
        return rows.square()


def test_a_form_that_cannot_be_made_is_a_candidate_with_the_reason(tmp_path: Path) -> None:
    encoding = Encoding((Feature("a", "number"),), "t")
    served, objective = Served(Network(encoding, _Squares()), Regression()), Regression()
    rows = np.float32([[1.0], [2.0], [3.0]])
    evidence = gather_evidence(
        *(served, objective, encoding.input, rows, rows[:, 0]), golden_rows=2
    )
    exporter = Exporter(
        *(served, objective, encoding.input), lambda: [rows], lambda: evidence, tmp_path, 1, BOTH
    )
    found = list(exporting_here(exporter).candidates(evidence))
    assert [c.name for c in found] == [FP32, INT8]
    assert found[0].reason is None
    assert "nothing in the model can be quantized" in (found[1].reason or "")


def test_a_source_of_rows_that_is_away_fails_the_run(tmp_path: Path, exported: Any) -> None:
    def away() -> Iterator[Array]:
        raise TransientError("the table cannot be read")

    exported.place(tmp_path)
    exporter = exporter_of(exported, tmp_path, ExportSpec(candidates=(INT8,)))
    with pytest.raises(TransientError, match="the table cannot be read"):
        list(replace(exporter, calibration=away).candidates(evidence_of(exported)))


def test_a_form_that_cannot_be_calibrated_is_a_candidate_with_the_reason(
    made: dict[str, Path], tmp_path: Path, exported: Any
) -> None:
    shutil.copyfile(made[FP32], tmp_path / f"{FP32}.onnx")
    exporter = exporter_of(exported, tmp_path, ExportSpec(candidates=(INT8,)))
    (found,) = replace(exporter, calibration=list).candidates(evidence_of(exported))
    assert found.path is None
    assert "No data is collected" in (found.reason or "")


class _Branching(nn.Module):
    def forward(self, rows: Tensor) -> Tensor:
        return rows * 2 if rows.sum() > 0 else rows


def test_a_model_that_cannot_be_exported_gives_no_form_at_all(tmp_path: Path) -> None:
    encoding = Encoding((Feature("v", "vector", width=2),), "t", ("no", "yes"))
    objective = Classification(("no", "yes"))
    served = Served(Network(encoding, _Branching()), objective)
    rows = np.float32([[1.0, 2.0], [3.0, 4.0]])
    evidence = gather_evidence(
        *(served, objective, encoding.input, rows, np.array([1, 1])), golden_rows=1
    )
    exporter = Exporter(
        *(served, objective, encoding.input), lambda: [rows], lambda: evidence, tmp_path, 1, BOTH
    )
    found = list(exporter.candidates(evidence))
    assert [c.reason for c in found] == ["the model cannot be exported to ONNX"] * 2


BAD = {
    "hangs": "did not end within 2 s",
    "eats": "MemoryError",
    "crashes": "crashed: SIGABRT",
    "killed": "was killed",
    "writes_nothing": "wrote no model",
    "writes_rubbish": "no valid ONNX model",
}


@pytest.mark.parametrize("kind", BAD)
def test_a_conversion_that_goes_wrong_is_a_row_and_the_others_go_on(
    exported: Any, made: dict[str, Path], tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = Variant(f"tests.unit.export.bad.{kind}")
    monkeypatch.setitem(module.VARIANTS, "onnx-fp16", bad)  # type: ignore[arg-type]
    shutil.copyfile(made[FP32], tmp_path / f"{FP32}.onnx")
    limits = ExportLimits(seconds=2.0 if kind == "hangs" else 60.0, memory_gib=3)
    spec = ExportSpec(candidates=("onnx-fp16", FP32), limits=limits)
    exporter = exporter_of(exported, tmp_path, spec)
    if kind == "hangs":  # the measurements need more than 2 s
        with pytest.raises(WorkError, match=BAD[kind]):
            exporter.make("onnx-fp16")
        return
    broken, good = exporter.candidates(evidence_of(exported))
    assert BAD[kind] in (broken.reason or "")
    assert good.passed


@pytest.mark.parametrize(("error", "attempts"), [(WorkError, 1), (TransientError, 2)])
def test_only_a_failure_that_may_pass_is_tried_again(
    exported: Any, tmp_path: Path, error: type[WorkError], attempts: int
) -> None:
    tried = []

    def fail(path: Path) -> None:
        tried.append(path)
        raise error("it cannot be written")

    exporter = replace(exporter_of(exported, tmp_path, BOTH), to_onnx=fail)
    for name in (FP32, INT8):
        with pytest.raises(error, match="it cannot be written"):
            exporter.make(name)
    assert len(tried) == attempts


def test_a_form_that_does_not_answer_in_time_is_a_row(exported: Any, made: dict[str, Path]) -> None:
    spec = ExportSpec(candidates=(FP32,), limits=ExportLimits(seconds=0.001))
    (found,) = exporter_of(exported, made[FP32].parent, spec).candidates(evidence_of(exported))
    assert "its measurement did not end" in (found.reason or "")


def test_every_form_that_a_pipeline_may_name_can_be_made() -> None:
    found = {name for name in all_variants() if name.startswith(("onnx-", "tensorrt-"))}
    assert {*VARIANTS, *ENGINES, FP32, MIXED} == found - {*LANGUAGE_VARIANTS}


@pytest.mark.parametrize("name", [FP32, INT8])
def test_onnxruntime_alone_gives_the_certified_answers(
    made: dict[str, Path], exported: Any, tmp_path: Path, name: str
) -> None:
    rows, answers = exported.rows(8), tmp_path / "answers.npy"
    np.save(tmp_path / "rows.npy", rows)
    program = (
        "import sys, numpy, onnxruntime\n"
        "model, rows, answers = sys.argv[1:]\n"
        "session = onnxruntime.InferenceSession(model)\n"
        "numpy.save(answers, session.run(None, {'features': numpy.load(rows)})[0])\n"
        "assert not {'torch', 'millrace'} & sys.modules.keys()\n"
    )
    words = [sys.executable, "-c", program, made[name], tmp_path / "rows.npy", answers]
    subprocess.run(words, cwd=tmp_path, check=True, env={})
    candidate = exporter_of(exported, made[FP32].parent).measure(
        name, made[name], evidence_of(exported)
    )
    assert candidate.stage is not None
    difference = np.abs(np.load(answers) - exported.answer(rows)).max()
    assert difference <= candidate.stage.golden_difference + 1e-6


class _Hanging(nn.Module):
    def forward(self, rows: Tensor) -> Tensor:
        import time

        time.sleep(60)
        return rows


class _Crashing(nn.Module):
    def forward(self, rows: Tensor) -> Tensor:
        import os

        os.abort()


@pytest.mark.parametrize(
    ("net", "seconds", "reason"),
    [
        (_Hanging(), 8, "its conversion did not end within 8 s"),
        (_Crashing(), 100, "its conversion crashed: SIGABRT"),
    ],
)
def test_a_module_that_hangs_or_crashes_while_it_is_exported_ends_no_run(
    exported: Any, tmp_path: Path, net: nn.Module, seconds: float, reason: str
) -> None:
    import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    spec = ExportSpec(candidates=(FP32,), limits=ExportLimits(seconds=seconds))
    exporter = replace(exporter_of(exported, tmp_path, spec), served=net)
    (found,) = exporter.candidates(evidence_of(exported))
    assert found.reason == reason
    assert not list(tmp_path.glob("*.onnx"))
