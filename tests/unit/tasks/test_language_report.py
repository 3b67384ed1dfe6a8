"""The page of a language model's run: what is in it, and that no text breaks it."""

from types import SimpleNamespace

import pytest
from markdown_it import MarkdownIt
from matplotlib.figure import Figure

from millrace.export.language.golden_texts import Golden
from millrace.export.language.language_certificate import LanguageStage
from millrace.models.language.corpus.ngram import Baselines
from millrace.tasks.kinds.language.language_report import baselines_table, code, html_page, samples

ODD = ("a|b", "one\ntwo", "``tick``", "", "<script>alert(1)</script>", "né 😀")


def golden(*answers: str) -> Golden:
    return Golden(("def f(", "x | y"), answers, 4, exact=True)


def test_forms_stand_side_by_side() -> None:
    written = {"openvino-fp32": golden("self):", "\n1"), "openvino-int8": golden("a):", "2")}
    text = samples(SimpleNamespace(golden=written["openvino-fp32"], written=written))
    lines = text.splitlines()
    assert len(lines) == 4
    assert lines[2].startswith("| `openvino-fp32` |")
    assert "self):" in lines[2]
    assert "a):" in lines[3]


@pytest.mark.parametrize("text", ODD)
def test_no_text_breaks_a_table(text: str) -> None:
    table = f"| a | b |\n| --- | --- |\n| {code(text)} | c |"
    html = MarkdownIt("commonmark", {"html": False}).enable("table").render(table)
    assert html.count("<td>") == 2
    assert "<script>" not in html


@pytest.mark.parametrize("base", [None, 83.004])
def test_the_base_stands_beside_what_was_made_of_it(base: float | None) -> None:
    certificate = SimpleNamespace(stages=(LanguageStage("transformers", 24.27),))
    text = baselines_table(Baselines(197.9, 12.3, 100, 1000, base), certificate)
    assert text.splitlines()[-1] == "| transformers | 24.27 |"
    assert ("| base, before training | 83.00 |" in text) is (base is not None)


def test_a_page_needs_no_other_file() -> None:
    figure = Figure()
    figure.subplots().plot([1, 2])
    page = html_page("a <b>", "# t\n\n<img src=x onerror=alert(1)>", {"Curve & more": figure})
    assert "<title>a &lt;b&gt;</title>" in page
    assert "<img src=x" not in page
    assert 'alt="Curve &amp; more"' in page
    assert "data:image/png;base64," in page
    assert "http" not in page
