from pathlib import Path

import pytest

from bench.peers import models
from bench.peers.models import Question, slow_model, small_model
from bench.server import raw_session
from millrace.models.common.errors import WorkError


def test_the_right_answer_is_that_of_the_model(tmp_path: Path) -> None:
    question = small_model(tmp_path)
    answer = raw_session(question.onnx).run(None, {"x": [question.row]})[0]
    question.check("a server", {"y": answer.tolist()})
    with pytest.raises(WorkError, match="a server answers something else"):
        question.check("a server", {"y": (answer + 1).tolist()})


def test_the_width_is_tried_until_a_row_takes_about_5_ms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[int] = []

    def write(path: Path, widths: tuple[int, ...]) -> Path:
        tried.append(widths[1])
        return path

    def time(onnx: Path, rows: int) -> float:
        return 5.0 * (tried[-1] / 1024) ** 2 * rows**0.5

    monkeypatch.setattr(models, "mlp", write)
    monkeypatch.setattr(models, "_median_ms", time)
    monkeypatch.setattr(models, "_question", lambda onnx, about: Question(onnx, [], [], about))
    about = slow_model(tmp_path).about
    assert tried == [2048, 1024]
    assert about == "a model of 5.0 ms a row and 28 ms for 32 rows, 3 layers of 1024 × 1024"
