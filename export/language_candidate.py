"""A candidate of a language model: one form of one training run, as it was measured."""

from dataclasses import dataclass
from pathlib import Path

from millrace.export.language.engine_speed import LanguageSpeed


@dataclass(frozen=True)
class LanguageStage:
    """How far a form is from transformers in float32.

    Attributes:
        name: of the form; `transformers` for the first stage of all.
        perplexity: on held-out text.
        perplexity_increase: relative to transformers': 0.01 is one percent more.
        mean_kl: KL(transformers ‖ form) by token, in nats.
        top1_agreement: share of tokens where both hold the same one for the likeliest.
        tokens: of held-out text that were measured.
        prompts: continued greedily by the engine, all at once.
        greedy_equal: those with transformers' tokens.
        greedy_ties: those that part at two logits as good as equal.
        texts: split by the form's own tokenizer.
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


@dataclass(frozen=True)
class LanguageCandidate:
    """One form of a language model.

    Attributes:
        name: `openvino-fp32`, `openvino-int8`, …
        path: the folder; None if the form could not be made.
        digest: sha256 over its files.
        size_bytes: of all files.
        speed: on this machine, with the threads that serving will use.
        stage: distance from transformers.
        reason: why it is refused; None if it holds its gates.
        is_served: whether a Triton backend here serves it; if not, it is measured to compare the
            others with, and never chosen.
    """

    name: str
    path: Path | None = None
    digest: str = ""
    size_bytes: int = 0
    speed: LanguageSpeed | None = None
    stage: LanguageStage | None = None
    reason: str | None = None
    is_served: bool = True

    @property
    def passed(self) -> bool:
        """Whether it holds its gates."""
        return self.reason is None
