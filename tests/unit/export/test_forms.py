import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from torch import Tensor, nn

from export.forms import FP32, Exporter
from export.measure import Evidence, gather_evidence
from models.arrays import Array
from models.digest import digest_of
from models.errors import TransientError
from models.features import Encoding, Feature
from models.network import Network, Served
from models.objective import Classification, Regression
from models.pipeline import ExportSpec

INT8 = "onnx-int8-static"


def exporter_of(exported: Any, folder: Path) -> Exporter:
    def calibration() -> Iterator[Array]:
        yield from (exported.rows(64, seed=seed) for seed in range(2))

    return Exporter(
        exported.served, exported.objective, exported.raw_width, calibration, folder, threads=1
    )


@pytest.fixture(scope="module")
def made(exported: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Both forms, int8 asked for first."""
    exporter = exporter_of(exported, tmp_path_factory.mktemp("forms"))
    return {name: exporter.make(name) for name in (INT8, FP32)}


def evidence_of(exported: Any) -> Evidence:
    rows = exported.rows(50)
    target = exported.answer(rows).argmax(axis=1)
    return gather_evidence(exported.served, exported.objective, rows, target, golden_rows=8)


def test_a_folder_holds_the_forms_and_no_drafts(made: dict[str, Path]) -> None:
    folder = made[FP32].parent
    assert {file.name for file in folder.iterdir()} == {f"{FP32}.onnx", f"{INT8}.onnx"}


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
    exporter = exporter_of(exported, made[FP32].parent)
    spec = ExportSpec(candidates=(INT8, FP32), max_metric_loss=0.1)
    found = list(exporter.candidates(spec, evidence_of(exported)))
    assert [(c.name, c.path, c.passed) for c in found] == [
        (INT8, made[INT8], True),
        (FP32, made[FP32], True),
    ]


class _Squares(nn.Module):
    def forward(self, rows: Tensor) -> Tensor:
        return rows.square()


def test_a_form_that_cannot_be_made_is_a_candidate_with_the_reason(tmp_path: Path) -> None:
    encoding = Encoding((Feature("a", "number"),), "t")
    served, objective = Served(Network(encoding, _Squares()), Regression()), Regression()
    rows = np.float32([[1.0], [2.0], [3.0]])
    evidence = gather_evidence(served, objective, rows, rows[:, 0], golden_rows=2)
    exporter = Exporter(served, objective, 1, lambda: [rows], tmp_path, threads=1)
    found = list(exporter.candidates(ExportSpec(), evidence))
    assert [(c.name, c.reason) for c in found] == [
        (FP32, None),
        (INT8, "nothing in the model can be quantized"),
    ]


def test_a_source_of_rows_that_is_away_fails_the_run(tmp_path: Path, exported: Any) -> None:
    def away() -> Iterator[Array]:
        raise TransientError("the table cannot be read")

    exporter = replace(exporter_of(exported, tmp_path), calibration=away)
    with pytest.raises(TransientError, match="the table cannot be read"):
        list(exporter.candidates(ExportSpec(candidates=(INT8,)), evidence_of(exported)))


def test_a_form_that_cannot_be_calibrated_is_a_candidate_with_the_reason(
    made: dict[str, Path], tmp_path: Path, exported: Any
) -> None:
    shutil.copyfile(made[FP32], tmp_path / f"{FP32}.onnx")
    exporter = replace(exporter_of(exported, tmp_path), calibration=list)
    (found,) = exporter.candidates(ExportSpec(candidates=(INT8,)), evidence_of(exported))
    assert (found.path, found.reason) == (None, "ONNX Runtime cannot quantize the model")


class _Branching(nn.Module):
    def forward(self, rows: Tensor) -> Tensor:
        return rows * 2 if rows.sum() > 0 else rows


def test_a_model_that_cannot_be_exported_gives_no_form_at_all(tmp_path: Path) -> None:
    encoding = Encoding((Feature("v", "vector", width=2),), "t", ("no", "yes"))
    objective = Classification(("no", "yes"))
    served = Served(Network(encoding, _Branching()), objective)
    rows = np.float32([[1.0, 2.0], [3.0, 4.0]])
    evidence = gather_evidence(served, objective, rows, np.array([1, 1]), golden_rows=1)
    exporter = Exporter(served, objective, 2, lambda: [rows], tmp_path, threads=1)
    found = list(exporter.candidates(ExportSpec(), evidence))
    assert [c.reason for c in found] == ["the model cannot be exported to ONNX"] * 2
