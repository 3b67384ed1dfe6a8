from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor, nn

from millrace.export.onnx.torch_export import OPSET, export_onnx
from millrace.models.common.errors import WorkError
from millrace.models.inference.model_input import FEATURES, ModelInput
from millrace.models.inference.onnx_session import OnnxSession

TWO = ModelInput(FEATURES, 2)


@pytest.mark.parametrize("rows", [1, 3, 64])
def test_onnx_answers_as_pytorch_does_at_any_batch_size(exported: Any, rows: int) -> None:
    batch = exported.rows(rows, seed=rows)
    answers = OnnxSession(exported.path).answer(batch)
    np.testing.assert_allclose(answers, exported.answer(batch), atol=1e-5)


def test_a_missing_category_is_answered_alike(exported: Any) -> None:
    batch = exported.rows(3)
    batch[:, 1] = np.nan
    answers = OnnxSession(exported.path).answer(batch)
    np.testing.assert_allclose(answers, exported.answer(batch), atol=1e-5)


def test_the_graph_takes_features_and_gives_the_objectives_output(exported: Any) -> None:
    graph = onnx.load(exported.path).graph
    shapes = {
        value.name: [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim]
        for value in (*graph.input, *graph.output)
    }
    assert shapes == {"features": ["rows", 8], "probabilities": ["rows", 3]}


def test_the_file_tells_nothing_of_the_machine_that_made_it(exported: Any) -> None:
    content = exported.path.read_bytes()
    assert b"site-packages" not in content
    assert str(Path.cwd()).encode() not in content


def test_the_graph_is_of_the_pinned_opset(exported: Any) -> None:
    assert {o.domain: o.version for o in onnx.load(exported.path).opset_import}[""] == OPSET


def test_weights_are_inside_the_one_file(exported: Any) -> None:
    model = onnx.load(exported.path, load_external_data=False)
    assert not any(onnx.external_data_helper.uses_external_data(i) for i in model.graph.initializer)
    assert not list(exported.path.parent.glob("*data*"))


class _Branching(nn.Module):
    """Takes a way that depends on the values of its input."""

    def forward(self, features: Tensor) -> Tensor:
        return features * 2 if features.sum() > 0 else features


def test_control_flow_that_depends_on_data_is_told(tmp_path: Path) -> None:
    with pytest.raises(WorkError) as caught:
        export_onnx(_Branching(), TWO, "prediction", tmp_path / "m.onnx")
    assert "cannot be exported to ONNX" in str(caught.value)
    assert "without data-dependent control flow" in str(caught.value)


class _Unknown(nn.Module):
    """Has an operator that ONNX has none for."""

    def forward(self, features: Tensor) -> Tensor:
        return torch.linalg.lu(features.T @ features)[0]


class _Raising(nn.Module):
    def forward(self, features: Tensor) -> Tensor:
        raise RuntimeError("the weights are missing")


@pytest.mark.parametrize(
    ("module", "seen"),
    [
        (_Branching(), "Could not guard on data-dependent expression"),
        (_Unknown(), "No ONNX function found for .*linalg_lu"),
        (_Raising(), "the weights are missing"),
    ],
)
def test_what_stands_in_the_way_of_an_export_is_shown_and_nothing_else(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], module: nn.Module, seen: str
) -> None:
    with pytest.raises(WorkError, match=f"seen: {seen}") as caught:
        export_onnx(module, TWO, "prediction", tmp_path / "m.onnx")
    assert "\x1b" not in str(caught.value)
    assert "".join(capfd.readouterr()) == ""


class _Twice(nn.Module):
    def forward(self, rows: Tensor) -> Tensor:
        return rows * 2


def test_forward_may_call_its_input_as_it_likes(tmp_path: Path) -> None:
    export_onnx(_Twice(), TWO, "prediction", tmp_path / "m.onnx")
    rows = torch.ones(5, 2).numpy()
    np.testing.assert_array_equal(OnnxSession(tmp_path / "m.onnx").answer(rows), rows * 2)


class _Dropping(nn.Module):
    def forward(self, features: Tensor) -> Tensor:
        return nn.functional.dropout(features * 1.0, 0.5, self.training)


def test_a_model_is_exported_as_it_infers(tmp_path: Path) -> None:
    export_onnx(_Dropping().train(), TWO, "prediction", tmp_path / "m.onnx")
    rows = torch.ones(64, 2).numpy()
    np.testing.assert_array_equal(OnnxSession(tmp_path / "m.onnx").answer(rows), rows)
