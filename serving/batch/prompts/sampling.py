"""How a language model's tokens are chosen in a batch job."""

from dataclasses import dataclass

from millrace.models.common.generation import MAX_TOKENS


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen, and when to end; the words are vLLM's.

    Attributes:
        max_tokens: of one answer; fewer where the context has no room for them.
        temperature: 0 always takes the likeliest token.
        top_p: keep the likeliest tokens whose probabilities sum up to this.
        top_k: keep so many of the likeliest tokens; None keeps all.
        repetition_penalty: above 1 makes tokens of prompt and answer less likely.
        seed: with it, and a row's place in the input, the row's answer is drawn.
        stop: texts that end an answer; they are not part of it.
    """

    max_tokens: int = MAX_TOKENS
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int | None = None
    repetition_penalty: float = 1.0
    seed: int = 0
    stop: tuple[str, ...] = ()

    def ended(self, text: str) -> str | None:
        """Return an answer up to the first stop in it; None where there is no stop."""
        ends = [at for stop in self.stop if (at := text.find(stop)) >= 0]
        return text[: min(ends)] if ends else None
