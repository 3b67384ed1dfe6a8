"""The export of a language model: which candidates have learnt something, and what they write."""

import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from millrace.export.certificate import Header
from millrace.export.language.golden_texts import Golden
from millrace.export.language.language_certificate import LanguageCandidate, LanguageStage
from millrace.export.language.language_exporter import language_gates
from millrace.export.language.transformers_reference import Reference
from millrace.models.common.errors import InputError, WorkError
from millrace.models.common.installation import Installation
from millrace.models.config.pipeline import Pipeline
from millrace.models.language.corpus.ngram import Baselines
from millrace.tasks.kinds.language import language_export as module
from millrace.tasks.kinds.language.language_export import LanguageExport
from millrace.tasks.kinds.language.language_train import DecoderTraining
from millrace.tasks.kinds.steps import Prepared, Trained

PIPELINE = Pipeline.model_validate(
    {
        "name": "lm",
        "dataset": {"source": "r.jsonl", "target": "text", "features": []},
        "model": {"family": "causal_lm"},
        "export": {"max_perplexity_increase": 0.02},
    }
)
HEADER = Header(
    model="lm",
    candidate="good",
    digest="d",
    dataset="texts",
    dataset_version=3,
    dataset_digest="e",
    passed=True,
)
REFERENCE = Reference(10.0, 100, 1, 4, texts=(("a", "b"),))
PYTHON = Path("/of/vllm/python")


def candidate(name: str, perplexity: float = 10.0, **values: Any) -> LanguageCandidate:
    return LanguageCandidate(name, Path(name), "d", stage=LanguageStage(name, perplexity), **values)


GOOD = candidate("good")
USELESS = candidate("useless", perplexity=50.0)
COMPARED = candidate("compared", is_served=False)
MUTE = candidate("mute")
UNMADE = LanguageCandidate("unmade", reason="its conversion crashed")


@pytest.fixture
def continued(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Continue golden prompts by the name of the variant; `mute` fails at it."""
    asked: list[str] = []

    def golden_of(variant: Path, reference: Reference, *given: object) -> Golden:
        asked.append(variant.name)
        assert reference is REFERENCE
        assert given[-1] == PYTHON
        if variant.name == "mute":
            raise WorkError("its golden answers crashed")
        return Golden(("a",), (f"of {variant.name}",), 4, exact=True)

    monkeypatch.setattr(module, "make_golden", golden_of)
    monkeypatch.setattr(module, "VariantFolder", SimpleNamespace(read=lambda path: path))
    return asked


def export(*made: LanguageCandidate, reference: Reference = REFERENCE) -> LanguageExport:
    exporter: Any = SimpleNamespace(
        stage=LanguageStage("transformers", 10.0, tokens=100),
        reference=reference,
        measure_candidates=lambda: iter(made),
        limits=None,
        gates=language_gates(),
    )
    tokens: Any = SimpleNamespace(fingerprint="f")
    nothing: Any = None
    details = DecoderTraining(tokens, Baselines(40.0, 20.0, 100, 1000))
    prepared = Prepared(nothing, details, None, "", "model", "checkpoint")
    trained = Trained(prepared, Path(), (), ())
    installation = Installation(Path("home"), "", "", vllm_python=PYTHON)
    return LanguageExport(PIPELINE, installation, exporter, trained)


def test_a_candidate_that_has_learnt_nothing_is_refused(continued: list[str]) -> None:
    good, useless = export(GOOD, USELESS).candidates()
    assert good is GOOD
    assert "50.0 is no better than 40.0" in str(useless.reason)


def test_candidates_come_before_they_are_asked_to_write(continued: list[str]) -> None:
    made = export(GOOD, USELESS)
    found = made.candidates()
    next(found)
    assert not continued
    assert len(list(found)) == 1
    assert continued == ["good", "useless"]
    assert made.texts.keys() == {"good", "useless"}


def test_only_what_is_served_and_was_made_is_asked_to_write(
    continued: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    made = export(COMPARED, UNMADE, MUTE, GOOD)
    with caplog.at_level(logging.WARNING, "millrace"):
        list(made.candidates())
    assert continued == ["mute", "good"]
    assert made.texts.keys() == {"good"}
    assert caplog.messages == [
        "the variant mute failed to answer the golden prompts: its golden answers crashed"
    ]


def test_the_evidence_is_what_the_chosen_one_writes(continued: list[str]) -> None:
    made = export(GOOD, MUTE)
    list(made.candidates())
    certificate = made.certificate(HEADER, (GOOD, MUTE), GOOD)
    (name,) = made.evidence(GOOD, certificate)
    assert name == "golden.json"
    assert json.loads(str(made.evidence(GOOD, certificate)[name]))["answers"] == ["of good"]
    with pytest.raises(WorkError, match="mute failed to answer the golden prompts"):
        made.evidence(MUTE, certificate)


def test_its_certificate_begins_with_transformers() -> None:
    found = export(GOOD).certificate(HEADER, (GOOD,), GOOD)
    assert [stage.name for stage in found.stages] == ["transformers"]
    assert (found.max_perplexity_increase, found.unigram) == (0.02, 40.0)
    assert (found.tokens_fingerprint, found.dataset_version) == ("f", 3)


def test_without_a_prompt_of_one_clear_answer_nothing_is_measured(continued: list[str]) -> None:
    made = export(GOOD, reference=Reference(10.0, 100, 1, 1))
    with pytest.raises(InputError, match="no prompt of the test split has a clear answer"):
        next(made.candidates())


def test_what_was_not_made_has_no_files() -> None:
    with pytest.raises(WorkError, match="unmade was chosen, but was not made"):
        export(UNMADE).model_files(UNMADE)
