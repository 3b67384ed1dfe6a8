"""The measurements of a language model's variants: their stages and their certificate."""

import math
from dataclasses import dataclass, replace

from millrace.export.candidate import Candidate
from millrace.export.certificate import Certificate, CertifiedVariant
from millrace.export.language.engine_speed import LanguageSpeed


@dataclass(frozen=True)
class LanguageStage:
    """The differences of a variant from transformers in float32.

    Attributes:
        name: name of the variant; `transformers` for the first stage.
        perplexity: perplexity on held-out text.
        perplexity_increase: increase relative to transformers: 0.01 is one percent more.
        mean_kl: mean of KL(transformers ‖ variant) per token, in nats.
        top1_agreement: share of tokens for which the variant and transformers predict the same most
            likely token.
        tokens: number of measured tokens of held-out text.
        prompts: number of prompts that the engine continued greedily, all at once.
        greedy_equal: number of continuations with the same tokens as in transformers.
        greedy_ties: number of continuations that first differ from transformers at a token where
            transformers' two largest logits are nearly equal.
        texts: number of texts that the variant's own tokenizer tokenized.
        texts_equal: number of these texts with the same tokens as in transformers.
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
        """Whether perplexity and KL divergence are finite."""
        return math.isfinite(self.perplexity) and math.isfinite(self.mean_kl)


LanguageCandidate = Candidate[LanguageStage, LanguageSpeed]


@dataclass(frozen=True)
class LiveStage:
    """How the live Triton continues the golden prompts, compared with the stored continuations.

    `millrace certify` sends every prompt twice: alone, and in flight together with other prompts.

    Attributes:
        difference: share of the characters after the first difference from the certified
            continuation, as mean over the prompts. If the prompts were sent alone and in flight,
            this is the larger of both means.
        prompts: number of prompts that `millrace certify` sent; 0 if only a release sent prompts.
        in_flight: largest number of prompts that were sent at once.
        certified_alone: number of prompts sent alone whose continuation equals the certified one.
        certified_in_flight: the same count for prompts in flight.
        transformers_alone: number of prompts sent alone whose continuation equals the one of
            transformers; None if transformers' continuations are not stored.
        transformers_in_flight: the same count for prompts in flight; None if transformers'
            continuations are not stored.
        perplexity: perplexity of the registered files on the held-out text; None if it was not
            measured again.
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
        """How many continuations equal the certified ones, in words."""
        return self._describe_counts(self.certified_alone, self.certified_in_flight)

    @property
    def as_transformers(self) -> str | None:
        """How many continuations equal those of transformers, in words; None if not known."""
        if self.transformers_alone is None or self.transformers_in_flight is None:
            return None
        return self._describe_counts(self.transformers_alone, self.transformers_in_flight)

    def _describe_counts(self, alone: int, together: int) -> str:
        of = f"of {self.prompts}"
        return f"{alone} {of} prompts alone, {together} {of} with {self.in_flight} in flight"


@dataclass(frozen=True, kw_only=True)
class LanguageCertificate(Certificate):
    """The certificate of a language model.

    Attributes:
        stages: the first stage, transformers, with which the variants are compared.
        forms: every variant of the pipeline file, with its measurements.
        max_perplexity_increase: largest relative increase of the perplexity that passes.
        tokens_fingerprint: fingerprint of the Delta table of tokens that has the held-out text;
            empty if not known.
        live: the last stage; None before the live Triton was measured.
        unigram: perplexity of a unigram model on the test split; None in old certificates, which do
            not have this field.
    """

    stages: tuple[LanguageStage, ...] = ()
    forms: tuple[CertifiedVariant[LanguageStage, LanguageSpeed], ...] = ()
    max_perplexity_increase: float
    tokens_fingerprint: str = ""
    live: LiveStage | None = None
    unigram: float | None = None

    def stage(self, name: str) -> LanguageStage | None:
        """Return the stage with a name; None if there is none."""
        found: LanguageStage | None = super().stage(name)
        return found

    @property
    def candidates(self) -> tuple[LanguageCandidate, ...]:
        """The variants as candidates without paths, because a certificate has no files."""
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
        """Return the certificate with `live` as its last stage."""
        return replace(self, live=live)
