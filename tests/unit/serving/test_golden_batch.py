"""The golden answers in a process of their own, where there is no server."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from millrace.models.common.digest import digest_of
from millrace.models.common.errors import WorkError
from millrace.serving.release.golden_batch import GoldenBatch
from millrace.serving.triton.graph.triton_graph import artifact_of_graph
from millrace.serving.triton.version_folder import Artifact

ROWS = np.arange(12, dtype=np.float32).reshape(4, 3)


@pytest.fixture
def artifact(tmp_path: Path, write_model) -> Artifact:  # type: ignore[no-untyped-def]
    file = write_model(tmp_path / "model.onnx", 1)
    return artifact_of_graph(file, digest_of(file))


GOLDEN = GoldenBatch({"features": ROWS}, {"features": ROWS}, {"answers": ROWS[:, :1]}, 0.0)


def test_answers_as_certified_are_proved(artifact: Artifact) -> None:
    assert GOLDEN.validate_in_subprocess(artifact) == 0.0


def test_other_answers_are_not(artifact: Artifact) -> None:
    other = replace(GOLDEN, answers={"answers": ROWS[:, :1] + 1})
    with pytest.raises(WorkError, match="the model's answers differ from its certified answers"):
        other.validate_in_subprocess(artifact)
    assert replace(other, difference=1.0).validate_in_subprocess(artifact) == 1.0


def test_an_output_that_is_lacking_is_not(artifact: Artifact) -> None:
    other = replace(GOLDEN, answers={"probabilities": ROWS[:, :1]})
    with pytest.raises(WorkError, match="has no output named .*, which was certified"):
        other.validate_in_subprocess(artifact)


def test_answers_that_are_no_numbers_are_not(artifact: Artifact) -> None:
    other = replace(GOLDEN, graph_inputs={"features": ROWS * np.float32("nan")})
    with pytest.raises(WorkError, match="not finite"):
        other.validate_in_subprocess(artifact)
