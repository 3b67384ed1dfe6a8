from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch.nn import functional

from millrace.models.common.errors import InputError
from millrace.models.config.compression_spec import DistillationSpec
from millrace.models.config.pipeline_file import load_pipeline
from millrace.models.families.objective import Classification, Regression
from millrace.models.training.compression.distillation import Teacher, Tutor

LABELS = Classification(("a", "b", "c"))
WEIGHTS = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
ROWS = torch.from_numpy(np.random.default_rng(1).normal(size=(16, 4)).astype(np.float32))


def model(*, softmax: bool) -> bytes:
    """Features times weights, as probabilities or as they are."""
    nodes = [helper.make_node("MatMul", ["features", "w"], ["logits"])]
    if softmax:
        nodes.append(helper.make_node("Softmax", ["logits"], ["answers"], axis=1))
    else:
        nodes.append(helper.make_node("Identity", ["logits"], ["answers"]))
    weights = WEIGHTS if softmax else WEIGHTS[:, :1]
    graph = helper.make_graph(
        nodes,
        "teacher",
        [helper.make_tensor_value_info("features", TensorProto.FLOAT, ["rows", 4])],
        [helper.make_tensor_value_info("answers", TensorProto.FLOAT, ["rows", None])],
        [numpy_helper.from_array(weights, "w")],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return bytes(made.SerializeToString())


def tutor(objective: Any, weight: float, temperature: float = 2.0) -> Tutor:
    onnx_bytes = model(softmax=isinstance(objective, Classification))
    onnx.checker.check_model(onnx.load_from_string(onnx_bytes))
    return Tutor(Teacher("t version 1", onnx_bytes, temperature, weight), objective)


@pytest.mark.parametrize("temperature", [1.0, 2.0, 5.0])
def test_the_teachers_logits_are_followed_though_it_gives_probabilities(temperature: float) -> None:
    logits, exact = torch.randn(16, 3), ROWS @ torch.from_numpy(WEIGHTS)
    wanted = temperature**2 * functional.kl_div(
        functional.log_softmax(logits / temperature, dim=1),
        functional.log_softmax(exact / temperature, dim=1),
        reduction="batchmean",
        log_target=True,
    )
    found = tutor(LABELS, 1.0, temperature).blended(torch.tensor(9.0), ROWS, logits)
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)


def test_a_student_that_answers_as_its_teacher_has_nothing_to_learn_from_it() -> None:
    exact = ROWS @ torch.from_numpy(WEIGHTS) + 3.0  # a constant changes no answer
    assert float(tutor(LABELS, 1.0).blended(torch.tensor(9.0), ROWS, exact)) < 1e-5


@pytest.mark.parametrize("weight", [0.0, 0.25])
def test_both_losses_are_weighted(weight: float) -> None:
    logits = torch.randn(16, 3)
    alone = tutor(LABELS, 1.0).blended(torch.tensor(0.0), ROWS, logits)
    found = tutor(LABELS, weight).blended(torch.tensor(4.0), ROWS, logits)
    torch.testing.assert_close(found, (1 - weight) * 4.0 + weight * alone)


def test_a_number_is_followed_in_units_of_the_target() -> None:
    objective, logits = Regression(mean=10.0, std=2.0), torch.randn(16, 1)
    taught = ROWS @ torch.from_numpy(WEIGHTS[:, :1])
    wanted = functional.mse_loss(logits, (taught - 10.0) / 2.0)
    found = tutor(objective, 1.0).blended(torch.tensor(0.0), ROWS, logits)
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("teacher", ["digits", "digits@champion", "digits/3"])
def test_a_teacher_is_named_by_alias_or_by_number(teacher: str) -> None:
    assert DistillationSpec(teacher=teacher).teacher == teacher


@pytest.mark.parametrize("teacher", ["digits/0", "digits/x", "digits@", "@champion", "a@b/3"])
def test_what_names_no_teacher_is_told(teacher: str, tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(
        "name: student\ndataset: {source: rows.csv, target: y}\n"
        f"training: {{distillation: {{teacher: '{teacher}'}}}}\n"
    )
    with pytest.raises(InputError) as caught:
        load_pipeline(file)
    assert "training.distillation.teacher" in str(caught.value)
    assert teacher in str(caught.value)
