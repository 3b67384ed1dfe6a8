"""The pictures of a run are drawn in another process, and a run succeeds without them."""

import io
import logging
import pickle
import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from PIL import Image

from millrace.models.common.errors import WorkError
from millrace.models.common.pictures import png_of
from millrace.tasks.reports import run_report
from millrace.tasks.reports.drawing import Drawing, drawing_process
from millrace.tasks.reports.plots import learning_curves, predicted_against_true

HISTORY = [
    {"epoch": number, "train_loss": 1 / number, "validation_loss": 2 / number}
    | {"train_accuracy": 0.8, "validation_accuracy": 0.7}
    for number in (1, 2, 3)
]
CURVES = partial(learning_curves, HISTORY, "accuracy")
POINTS = partial(predicted_against_true, np.arange(5.0), np.arange(5.0))
BROKEN = partial(learning_curves, HISTORY, "perplexity")


def pixels(png: bytes) -> Any:
    return np.asarray(Image.open(io.BytesIO(png)))


def test_pictures_are_drawn_as_they_would_be_here() -> None:
    with drawing_process() as drawing:
        drawing.begin({"plots/a.png": CURVES})
        drawing.add({"plots/b.png": POINTS})
        found = drawing.pictures()
    assert list(found) == ["plots/a.png", "plots/b.png"]
    assert np.array_equal(pixels(found["plots/a.png"]), pixels(png_of(CURVES())))
    assert pixels(found["plots/a.png"]).shape == (396, 990, 3)


def test_a_picture_has_the_pixels_that_matplotlib_saves() -> None:
    saved = io.BytesIO()
    CURVES().savefig(saved, format="png", dpi=110)
    expected = Image.open(saved).convert("RGB")
    assert np.array_equal(pixels(png_of(CURVES())), np.asarray(expected))


@pytest.mark.parametrize(
    ("figures", "rest"),
    [
        ({"plots/a.png": BROKEN}, {"plots/b.png": CURVES}),
        ({"plots/a.png": CURVES}, {"plots/b.png": BROKEN}),
    ],
)
def test_a_figure_that_cannot_be_drawn_is_told(figures: Any, rest: Any) -> None:
    with drawing_process() as drawing:
        drawing.begin(figures)
        drawing.add(rest)
        with pytest.raises(WorkError, match="KeyError: 'train_perplexity'"):
            drawing.pictures()


def test_a_figure_that_cannot_be_sent_is_told() -> None:
    with drawing_process() as drawing:
        drawing.begin({"plots/a.png": lambda: CURVES()})
        drawing.add({"plots/b.png": CURVES})
        with pytest.raises((AttributeError, pickle.PicklingError), match="pickle"):
            drawing.pictures()


def test_nothing_is_started_for_a_run_without_pictures() -> None:
    with drawing_process() as drawing:
        assert drawing.pictures() == {}
    assert drawing._process is None


def test_the_process_ends_with_the_block() -> None:
    with drawing_process() as drawing:
        drawing.begin({"plots/a.png": CURVES})
        process = drawing._process
    assert process is not None
    assert process.poll() is not None


def test_what_draws_a_picture_imports_matplotlib_only_then() -> None:
    """Or a run would wait for that."""
    modules = ("graph.graph_report", "gradient_boosting.boosting_plots", "language.language_plots")
    imports = "".join(f"import millrace.tasks.kinds.{each}\n" for each in modules)
    program = f"{imports}import sys; assert 'matplotlib' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)


class Run:
    path = "#/experiments/1/runs/r"

    def __init__(self) -> None:
        self.logged: dict[str, Any] = {}
        self.description = ""

    def describe(self, text: str) -> None:
        self.description = text

    def log_report(self, texts: Mapping[str, str], pictures: Mapping[str, bytes]) -> None:
        self.logged |= {**texts, **pictures}


class Anything:
    """Has every attribute, and is no number."""

    sections = facts = ()
    rows = quarantined = 0
    digest, beside = "", None

    def __getattr__(self, name: str) -> str:
        return name


def publish(drawing: Drawing, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setattr(run_report, "create_markdown_artifact", lambda *_, **__: None)
    run, anything = Run(), Anything()
    installation: Any = SimpleNamespace(tracking_uri="sqlite:///mlflow.db")
    given: Any = dict.fromkeys(("snapshot", "report", "version", "promotion"), anything)
    given["report"] = SimpleNamespace(facts=(), sections=(), rows=(("test accuracy", "0.9"),))
    run_report.publish_training("m", installation, run=cast(Any, run), drawing=drawing, **given)
    return run


def test_pictures_are_stored_and_shown_on_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    with drawing_process() as drawing:
        drawing.begin({})
        drawing.add({"plots/a.png": CURVES})
        run = publish(drawing, monkeypatch)
    assert run.logged.keys() == {"report.html", "plots/a.png"}
    assert "<h2>A</h2><img" in run.logged["report.html"]
    assert "| test accuracy | 0.9 |" in run.description
    assert "[report with pictures](#/experiments/1/runs/r/artifacts/report.html)" in run.description


def test_a_run_without_its_pictures_has_its_page(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with drawing_process() as drawing, caplog.at_level(logging.WARNING, "millrace"):
        drawing.begin({})
        drawing.add({"plots/a.png": BROKEN})
        run = publish(drawing, monkeypatch)
    assert run.logged.keys() == {"report.html"}
    assert "this run has no pictures: KeyError" in caplog.text
