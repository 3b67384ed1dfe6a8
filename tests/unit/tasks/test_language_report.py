"""What is shown of a language model's run, and that no text breaks it."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from markdown_it import MarkdownIt

from millrace.export.certificate import certify_candidates
from millrace.export.language.engine_speed import LanguageSpeed
from millrace.export.language.golden_texts import Golden
from millrace.export.language.language_certificate import (
    LanguageCandidate,
    LanguageCertificate,
    LanguageStage,
)
from millrace.models.config.pipeline import Pipeline
from millrace.models.language.base_checkpoint import CHECKPOINT_TAG, checkpoint_digest
from millrace.models.language.corpus.ngram import Baselines
from millrace.models.language.corpus.token_table import SplitCounts
from millrace.tasks.kinds.language.language_export import LanguageExport
from millrace.tasks.kinds.language.language_report import (
    baselines_table,
    code,
    draw_export,
    report_language,
    samples,
    variant_row,
    variants_table,
)
from millrace.tasks.kinds.language.language_train import DecoderTraining
from millrace.tasks.kinds.steps import Exported, KindReport, Prepared, Trained

ODD = ("a|b", "one\ntwo", "``tick``", "", "<script>alert(1)</script>", "né 😀")
EXACT, INT8 = "openvino-fp32", "openvino-int8"
SPEED = LanguageSpeed(12.5, 2.25, {1: 400.0, 8: 1500.0, 32: 2000.0}, 8, 8)
CANDIDATES = (
    LanguageCandidate(
        *(EXACT, Path(EXACT), "e", 4 * 2**20, SPEED, LanguageStage(EXACT, 24.0, 0.0))
    ),
    LanguageCandidate(
        *(INT8, Path(INT8), "i", 2**20, SPEED, LanguageStage(INT8, 24.24, 0.01, 1e-3, 0.98))
    ),
    LanguageCandidate("openvino-int4", reason="no layer gets 4 bits"),
)
CERTIFICATE = LanguageCertificate(
    model="lm",
    candidate=INT8,
    digest="i",
    dataset="texts",
    dataset_version=3,
    dataset_digest="d",
    max_perplexity_increase=0.01,
    passed=True,
    machine="a laptop",
    stages=(LanguageStage("transformers", 24.0, tokens=900),),
    forms=certify_candidates(CANDIDATES),
)


def golden(*answers: str) -> Golden:
    return Golden(("def f(", "x | y"), answers, 4, exact=True)


WRITTEN = {EXACT: golden("self):", "\n1"), INT8: golden("a):", "2")}


def export(**written: Golden) -> LanguageExport:
    nothing: Any = None
    return LanguageExport(nothing, nothing, nothing, nothing, dict(written))


def reported(
    folder: Path,
    unigram: float = 200.0,
    base: float | None = None,
    certificate: LanguageCertificate = CERTIFICATE,
    **values: Any,
) -> KindReport:
    """Return the report of a run whose checkpoint is `folder`."""
    (folder / "model.safetensors").write_text("weights")
    tokens: Any = SimpleNamespace(
        version=7,
        fingerprint="f",
        tokenizer_digest="t",
        splits={"train": SplitCounts(9, 9, 9000), "test": SplitCounts(1, 1, 1000)},
    )
    details = DecoderTraining(tokens, Baselines(unigram, 50.0, 100, 1000, base))
    job: Any = None
    prepared = Prepared(job, details, None, "", ".", "checkpoint")
    history = ({"tokens": 100, "loss": 3.0, "perplexity": 25.0},)
    trained = Trained(prepared, folder, history, ())
    chosen = CANDIDATES[1]
    exported = Exported(export(**WRITTEN), CANDIDATES, chosen, certificate, {}, {})
    pipeline = Pipeline.model_validate(
        {
            "name": "lm",
            "dataset": {"source": "r.jsonl", "target": "text", "features": []},
            "model": {"family": "causal_lm", **values.get("model", {})},
            "serving": {"generation": {"draft": values.get("draft")}},
        }
    )
    snapshot: Any = None
    return report_language(pipeline, snapshot, trained, exported)


def test_its_rows_are_what_there_is_to_beat_and_every_variant(tmp_path: Path) -> None:
    rows = dict(reported(tmp_path).rows)
    assert rows["tokens"] == "train 9,000, test 1,000"
    assert rows["test perplexity"] == "24.00 (trigram model 50.0, unigram model 200.0)"
    assert "before training" not in rows
    assert rows[INT8] == (
        "1.0 MiB, perplexity 24.24 (+1.00%), first token 12.5 ms, "
        "400 / 1,500 / 2,000 tokens/s at 1 / 8 / 32 streams  ← chosen"
    )
    assert "←" not in rows[EXACT]
    assert rows["openvino-int4"] == "no layer gets 4 bits"


def test_where_none_passed_the_chosen_one_is_the_nearest(tmp_path: Path) -> None:
    rows = dict(reported(tmp_path, certificate=replace(CERTIFICATE, passed=False)).rows)
    assert rows[INT8].endswith("  ← closest to the limits")


@pytest.mark.parametrize(("unigram", "told"), [(24.0, True), (24.1, False)])
def test_a_model_no_better_than_counting_has_learnt_nothing(
    tmp_path: Path, unigram: float, told: bool
) -> None:
    row = dict(reported(tmp_path, unigram).rows)["test perplexity"]
    assert row.endswith("; no better than the unigram model") is told


def test_what_was_trained_from_is_named(tmp_path: Path) -> None:
    base = {"pretrained": "models:/small/3", "revision": "a" * 64}
    found = reported(tmp_path, base=83.004, model=base)
    assert dict(found.rows)["before training"] == "83.00, of models:/small/3"
    assert ("base", "`models:/small/3`") in found.facts
    assert found.tags["millrace.base"] == "models:/small/3"
    assert found.metrics["test.base"] == 83.004
    none = reported(tmp_path)
    assert "base" not in dict(none.facts)
    assert not any(name.startswith("millrace.base") for name in none.tags)
    assert "test.base" not in none.metrics


def test_its_tags_say_how_good_it_is_and_what_it_is_made_of(tmp_path: Path) -> None:
    assert reported(tmp_path, draft="small/2").tags == {
        "millrace.perplexity": "24.2400",
        "millrace.perplexity_increase": "1.0000%",
        "millrace.tokenizer_digest": "t",
        CHECKPOINT_TAG: checkpoint_digest(tmp_path),
        "millrace.draft": "small/2",
    }
    assert "millrace.draft" not in reported(tmp_path).tags


def test_every_variant_that_was_measured_has_metrics(tmp_path: Path) -> None:
    metrics = reported(tmp_path).metrics
    assert metrics["test.unigram"] == 200.0
    assert metrics["test.trigram"] == 50.0
    of_one = {name.rpartition(".")[2] for name in metrics if name.startswith(f"variant.{INT8}.")}
    assert of_one == {
        *("perplexity", "mean_kl", "top1_agreement", "size_bytes", "time_to_first_token_ms"),
        *("ms_per_token", "tokens_per_second_1", "tokens_per_second_8", "tokens_per_second_32"),
    }
    assert not any("openvino-int4" in name for name in metrics)


def test_a_run_keeps_texts_and_pictures(tmp_path: Path) -> None:
    found = reported(tmp_path)
    assert set(found.texts) == {"golden.json", "export/forms.md", "samples.md"}
    assert found.texts["golden.json"] == WRITTEN[INT8].to_json()
    figures = draw_export(export(**WRITTEN), CANDIDATES, CANDIDATES[1])
    assert set(figures) == {"plots/forms.png"}
    assert [title for title, _ in found.sections] == [
        *("Perplexity on the test split", "Variants", "What it writes"),
    ]
    assert found.json["tokens"]["version"] == 7
    assert found.files == ()


def test_a_variant_is_told_with_its_verdict() -> None:
    figures = ("24.24", "+1.00%", "1.00e-03", "98.00%", "12.5 ms", "2.25 ms")
    rates = ("400", "1,500", "2,000")
    assert variant_row(CANDIDATES[1], CERTIFICATE) == (
        *(INT8, "1.0 MiB", *figures, *rates, "chosen"),
    )
    assert variant_row(CANDIDATES[0], CERTIFICATE, in_front=True)[::11] == (f"{EXACT} ★", "passed")
    refused = replace(CANDIDATES[1], reason="its 1.00 MiB are too many")
    assert variant_row(refused, CERTIFICATE)[-1] == "its 1.00 MiB are too many"
    unmade = variant_row(CANDIDATES[2], CERTIFICATE)
    assert unmade == ("openvino-int4", *[""] * 10, "no layer gets 4 bits")


def test_variants_of_the_front_have_a_star_and_the_machine_is_told() -> None:
    slow = replace(CANDIDATES[0], name="slow", size_bytes=2**30)
    told = variants_table([*CANDIDATES, slow], CERTIFICATE)
    assert f"| {INT8} ★ |" in told
    assert f"| {EXACT} ★ |" in told
    assert "| slow |" in told
    assert "Measured on a laptop." in told


def test_variants_stand_side_by_side() -> None:
    text = samples(export(**WRITTEN), CANDIDATES[1])
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
