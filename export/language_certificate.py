"""The certificate of a language model: what it lost on its way from transformers to its forms."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from millrace.export.language.engine_speed import LanguageSpeed
from millrace.export.language_candidate import LanguageCandidate, LanguageStage
from millrace.models.common.bounded_files import bounded_json


@dataclass(frozen=True)
class LiveStage:
    """How the live Triton goes on with golden prompts, greedily: alone, and beside others.

    Attributes:
        difference: share of the certified answers, in characters, that it gives otherwise; the
            larger of alone and beside others.
        prompts: that `millrace certify` asked; 0 where only a release has asked.
        in_flight: of them at a time, at most.
        certified_alone: answered alone as certified, to the letter; so certified_in_flight.
        transformers_alone: answered alone as by transformers; None if that was not kept; so
            transformers_in_flight.
        perplexity: of the registered files on the held-out text; None if not measured again.
    """

    difference: float
    prompts: int = 0
    in_flight: int = 0
    certified_alone: int = 0
    certified_in_flight: int = 0
    transformers_alone: int | None = None
    transformers_in_flight: int | None = None
    perplexity: float | None = None

    @property
    def as_certified(self) -> str:
        """How many are answered as certified, in words."""
        return self._told(self.certified_alone, self.certified_in_flight)

    @property
    def as_transformers(self) -> str | None:
        """How many are answered as by transformers, in words; None if that was not kept."""
        if self.transformers_alone is None or self.transformers_in_flight is None:
            return None
        return self._told(self.transformers_alone, self.transformers_in_flight)

    def _told(self, alone: int, together: int) -> str:
        of = f"of {self.prompts}"
        return f"{alone} {of} prompts alone, {together} {of} with {self.in_flight} in flight"


@dataclass(frozen=True)
class CertifiedForm:
    """One form, as it was measured.

    Attributes:
        name: of the candidate.
        digest: sha256 over its files; empty if it could not be made.
        stage: distance from transformers.
        speed: on the machine of the certificate.
        reason: why it was refused; None if it held its gates.
    """

    name: str
    digest: str = ""
    stage: LanguageStage | None = None
    speed: LanguageSpeed | None = None
    reason: str | None = None

    @property
    def candidate(self) -> LanguageCandidate:
        """The same as a candidate whose files are elsewhere."""
        size = (self.stage and self.stage.size_bytes) or 0
        return LanguageCandidate(
            self.name, None, self.digest, size, self.speed, self.stage, self.reason
        )


@dataclass(frozen=True)
class LanguageCertificate:
    """The evidence that is kept with a version of a language model as `certificate.json`.

    Attributes:
        model: registered model.
        candidate: the form that was chosen.
        digest: sha256 over the files of the chosen form.
        dataset: name of the dataset.
        dataset_version: snapshot that the held-out text is of.
        dataset_digest: digest of that snapshot.
        max_perplexity_increase: the gate.
        passed: whether the chosen form held its gates.
        machine: what the forms were measured on, in words.
        machine_kind: the same as far as another machine of its kind has it too.
        stages: transformers, with which the forms are compared.
        forms: all that were asked for, in their order.
        tokens_fingerprint: of the token table that the held-out text is of; empty if not known.
        live: the last stage; None before the live Triton was asked.
        unigram: perplexity on the test split of a model that looks at no other token; None in a
            certificate of before that was kept.
    """

    model: str
    candidate: str
    digest: str
    dataset: str
    dataset_version: int
    dataset_digest: str
    max_perplexity_increase: float
    passed: bool
    machine: str = ""
    machine_kind: str = ""
    stages: tuple[LanguageStage, ...] = ()
    forms: tuple[CertifiedForm, ...] = ()
    tokens_fingerprint: str = ""
    live: LiveStage | None = None
    unigram: float | None = None

    def form(self, name: str) -> CertifiedForm | None:
        """Return the form of that name."""
        return next((form for form in self.forms if form.name == name), None)

    def with_live(self, live: LiveStage) -> "LanguageCertificate":
        """Return the certificate with its last stage."""
        return replace(self, live=live)

    def to_json(self) -> str:
        """Return the certificate as JSON."""
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> "LanguageCertificate":
        """Read what `to_json` wrote."""
        values = bounded_json(text)
        stages = tuple(LanguageStage(**stage) for stage in values.pop("stages"))
        forms = tuple(_form(form) for form in values.pop("forms"))
        live = values.pop("live", None)
        return cls(
            **values, stages=stages, forms=forms, live=None if live is None else LiveStage(**live)
        )


def certified(candidates: Sequence[LanguageCandidate]) -> tuple[CertifiedForm, ...]:
    """Return candidates without what holds on this machine alone: where their files are."""
    return tuple(CertifiedForm(c.name, c.digest, c.stage, c.speed, c.reason) for c in candidates)


def speed_from(values: dict[str, Any]) -> LanguageSpeed:
    """Return a speed that was written as JSON, whose names are words."""
    rates = {int(streams): rate for streams, rate in values["tokens_per_second"].items()}
    return LanguageSpeed(**{**values, "tokens_per_second": rates})


def _form(values: dict[str, Any]) -> CertifiedForm:
    stage, speed = values["stage"], values["speed"]
    return CertifiedForm(
        values["name"],
        values["digest"],
        LanguageStage(**stage) if stage else None,
        speed_from(speed) if speed else None,
        values["reason"],
    )
