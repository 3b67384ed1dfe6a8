"""The last stage of a language model's certificate: what the live Triton answers."""

from dataclasses import dataclass


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
