"""What is otherwise than a language model's certificate says."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from millrace.export.certificate import CertifiedVariant
from millrace.export.language.language_certificate import (
    LanguageCertificate,
    LanguageStage,
    LiveStage,
)
from millrace.models.registry.version_files import ModelVersion
from millrace.serving.release.golden_prompts import GoldenPrompts
from millrace.tasks.kinds.language.language_certify import (
    LiveLanguage,
    certify_live_answers,
    faults_of,
)
from millrace.tasks.kinds.steps import Table

EXACT = "openvino-fp32"
CERTIFICATE = LanguageCertificate(
    model="lm",
    candidate=EXACT,
    digest="f" * 64,
    dataset="texts",
    dataset_version=3,
    dataset_digest="d" * 64,
    max_perplexity_increase=0.01,
    passed=True,
    stages=(LanguageStage("transformers", 10.0, tokens=900),),
    forms=(CertifiedVariant(EXACT, stage=LanguageStage(EXACT, 10.0, prompts=64, greedy_equal=64)),),
)
LIVE = LiveStage(0.0, 64, 32, 64, 64, 64, 64, perplexity=10.0)
PROMPTS = tuple("abcdefgh")
GOLDEN = GoldenPrompts(PROMPTS, PROMPTS, 4, exact=True, transformers=PROMPTS)


def faults(live: LiveStage, *, exact: bool = True, **certificate: object) -> list[str]:
    return list(faults_of(replace(CERTIFICATE, **certificate), live, exact=exact))


class Server:
    """Answers each prompt with itself, but for those that it answers otherwise by themselves."""

    def __init__(self, **otherwise: str) -> None:
        self.streams, self.otherwise = self, otherwise

    def complete(self, model: str, prompt: str, *_: object, **__: object) -> SimpleNamespace:
        return SimpleNamespace(texts=[self.otherwise.get(prompt, prompt)])


def test_a_live_server_that_answers_as_certified_has_no_fault() -> None:
    assert faults(LIVE) == []
    assert LIVE.as_certified == "64 of 64 prompts alone, 64 of 64 with 32 in flight"
    assert LIVE.as_transformers == LIVE.as_certified


@pytest.mark.parametrize("count", ["certified_alone", "certified_in_flight"])
def test_an_exact_form_must_answer_all_as_certified(count: str) -> None:
    (fault,) = faults(replace(LIVE, **{count: 63}))
    assert "63 of 64" in fault
    assert "as certified" in fault


@pytest.mark.parametrize("count", ["transformers_alone", "transformers_in_flight"])
def test_an_exact_form_must_answer_all_as_transformers(count: str) -> None:
    (fault,) = faults(replace(LIVE, **{count: 60}))
    assert "60 of 64" in fault
    assert "as by transformers" in fault


def test_of_transformers_nothing_is_asked_where_nothing_was_kept() -> None:
    live = replace(LIVE, transformers_alone=None, transformers_in_flight=None)
    assert live.as_transformers is None
    assert faults(live) == []


@pytest.mark.parametrize(("share", "told"), [(0.4, 0), (0.6, 1), (float("nan"), 1)])
def test_a_form_in_short_numbers_may_part_in_half(share: float, told: int) -> None:
    live = replace(LIVE, difference=share, certified_alone=9, transformers_alone=7)
    assert len(faults(live, exact=False)) == told


@pytest.mark.parametrize(
    ("perplexity", "exact", "told"),
    [
        (10.0005, True, 0),
        (10.002, True, 1),
        (10.002, False, 0),
        (9.9, False, 1),
        (float("nan"), True, 1),
        (None, True, 0),  # of an engine that is not here
    ],
)
def test_another_perplexity_of_the_files_is_told(
    perplexity: float | None, exact: bool, told: int
) -> None:
    found = faults(replace(LIVE, perplexity=perplexity), exact=exact)
    assert [fault.startswith("file: perplexity") for fault in found] == [True] * told


def test_a_certificate_of_no_form_or_that_did_not_pass_is_told() -> None:
    assert faults(LIVE, candidate="other") == [
        "the certificate has no measurements of the variant other"
    ]
    assert faults(LIVE, passed=False) == [f"{EXACT} did not pass its gates when it was certified"]


def test_a_server_is_asked_alone_and_beside_others() -> None:
    version = ModelVersion("lm", 1, "f" * 64, "run")
    assert certify_live_answers(GOLDEN, Server(), version, 4, 10.0) == LiveStage(  # type: ignore[arg-type]
        0.0, 8, 4, 8, 8, 8, 8, perplexity=10.0
    )
    found = certify_live_answers(GOLDEN, Server(c="x", d=" d"), version, 4, 10.0)  # type: ignore[arg-type]
    assert (found.certified_alone, found.certified_in_flight) == (6, 6)
    assert (found.transformers_alone, found.transformers_in_flight) == (7, 7)
    assert found.difference == 0.25


def table(certificate: LanguageCertificate) -> Table:
    version = ModelVersion("lm", 1, "f" * 64, "run")
    return LiveLanguage(certificate, version, "127.0.0.1:8001", "", None, ()).table()


def test_what_was_not_asked_has_no_row_and_what_was_not_measured_no_figure() -> None:
    assert [row[0] for row in table(CERTIFICATE).rows] == ["transformers", f"{EXACT}  ← chosen"]
    assert len(table(replace(CERTIFICATE, candidate="other")).rows) == 1
    live = replace(LIVE, perplexity=None, transformers_alone=None)
    assert table(CERTIFICATE.with_live(live)).rows[-1] == (
        "triton",
        "",
        f"as certified: {LIVE.as_certified}",
    )


def test_the_stages_are_told_from_transformers_to_the_live_server() -> None:
    rows = table(CERTIFICATE.with_live(LIVE)).rows
    assert [row[0] for row in rows] == ["transformers", f"{EXACT}  ← chosen", "triton"]
    assert [row[1] for row in rows] == ["10.0000"] * 3
    assert rows[1][2] == "64 of 64 as transformers"
    assert rows[2][2].count("64 of 64 prompts alone, 64 of 64 with 32 in flight") == 2
