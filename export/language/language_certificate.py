"""What is measured of a language model's variants: their stages, and their certificate."""

import math
from dataclasses import dataclass, replace

from millrace.export.candidate import Candidate
from millrace.export.certificate import Certificate, CertifiedVariant
from millrace.export.language.engine_speed import LanguageSpeed


@dataclass(frozen=True)
class LanguageStage:
    """How far a variant is from transformers in float32.

    Attributes:
        name: of the variant; `transformers` for the first stage of all.
        perplexity: on held-out text.
        perplexity_increase: relative to transformers': 0.01 is one percent more.
        mean_kl: KL(transformers ‖ variant) by token, in nats.
        top1_agreement: share of tokens where both hold the same one for the likeliest.
        tokens: of held-out text that were measured.
        prompts: continued greedily by the engine, all at once.
        greedy_equal: those with transformers' tokens.
        greedy_ties: those that part at two logits as good as equal.
        texts: split by the variant's own tokenizer.
        texts_equal: those with the tokens of transformers' tokenizer.
        size_bytes: size of the folder; None for transformers.
    """

    name: str
    perplexity: float
    perplexity_increase: float = 0.0
    mean_kl: float = 0.0
    top1_agreement: float = 1.0
    tokens: int = 0
    prompts: int = 0
    greedy_equal: int = 0
    greedy_ties: int = 0
    texts: int = 0
    texts_equal: int = 0
    size_bytes: int | None = None

    @property
    def score(self) -> float:
        """The perplexity."""
        return self.perplexity

    @property
    def loss(self) -> float:
        """The relative increase of the perplexity."""
        return self.perplexity_increase

    @property
    def is_finite(self) -> bool:
        """Whether perplexity and divergence are numbers."""
        return math.isfinite(self.perplexity) and math.isfinite(self.mean_kl)


LanguageCandidate = Candidate[LanguageStage, LanguageSpeed]


@dataclass(frozen=True)
class LiveStage:
    """How the live Triton continues the golden prompts greedily: alone, and all at once.

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
        """How many answers are those of transformers, in words; None if it is not known."""
        if self.transformers_alone is None or self.transformers_in_flight is None:
            return None
        return self._told(self.transformers_alone, self.transformers_in_flight)

    def _told(self, alone: int, together: int) -> str:
        of = f"of {self.prompts}"
        return f"{alone} {of} prompts alone, {together} {of} with {self.in_flight} in flight"


@dataclass(frozen=True, kw_only=True)
class LanguageCertificate(Certificate):
    """The certificate of a language model.

    Attributes:
        stages: transformers, with which the variants are compared.
        forms: every variant that was asked for, as it was measured.
        max_perplexity_increase: the gate.
        tokens_fingerprint: of the token table that the held-out text is of; empty if not known.
        live: the last stage; None before the live Triton was asked.
        unigram: perplexity on the test split of a model that looks at no other token; None in a
            certificate of before that was kept.
    """

    stages: tuple[LanguageStage, ...] = ()
    forms: tuple[CertifiedVariant[LanguageStage, LanguageSpeed], ...] = ()
    max_perplexity_increase: float
    tokens_fingerprint: str = ""
    live: LiveStage | None = None
    unigram: float | None = None

    def stage(self, name: str) -> LanguageStage | None:
        """Return the stage of that name; None if there is none."""
        found: LanguageStage | None = super().stage(name)
        return found

    @property
    def candidates(self) -> tuple[LanguageCandidate, ...]:
        """The variants as candidates whose files are elsewhere."""
        return tuple(
            LanguageCandidate(
                name=variant.name,
                digest=variant.digest,
                size_bytes=(variant.stage and variant.stage.size_bytes) or 0,
                speed=variant.speed,
                stage=variant.stage,
                reason=variant.reason,
            )
            for variant in self.forms
        )

    def with_live(self, live: LiveStage) -> "LanguageCertificate":
        """Return the certificate with its last stage."""
        return replace(self, live=live)
