"""P9C: prefix caching on beside off, where prompts share their beginning, and where they do not."""

from dataclasses import dataclass

from bench.crowd import Crowd
from bench.language_stand import Stand
from bench.rounds import in_turn, ratio
from bench.row import Row
from millrace.models.config.language_spec import GenerationSpec

ROUNDS = 5
STREAMS = 16
TOKENS = 16
PREFIX, OWN = 2000, 80
"""Characters that all prompts begin with, about 465 tokens, and of each one's own."""
GOAL, COST = 2.0, 0.95


@dataclass(frozen=True)
class Compared:
    """On and off, in turn, asked the same."""

    on: Crowd
    off: Crowd
    on_tokens_per_s: list[float]
    off_tokens_per_s: list[float]

    @property
    def ratio(self) -> float:
        """Tokens per second, on ÷ off."""
        return ratio(self.on_tokens_per_s, self.off_tokens_per_s)

    def in_words(self) -> str:
        """Return the ratio, and the times to the first token."""
        return f"{self.ratio:.3f}; on: {self.on.in_words()}; off: {self.off.in_words()}"


def row(stand: Stand) -> Row:
    """Measure P9C."""
    with (
        stand.serving("kept", GenerationSpec()),
        stand.serving("anew", GenerationSpec(enable_prefix_caching=False)),
    ):
        shared = _compared(stand, OWN, stand.made.text[:PREFIX])
        apart = _compared(stand, PREFIX + OWN)
    return Row(
        name="P9C",
        what=f"prefix caching on ÷ off, tokens/s of {STREAMS} streams that share {PREFIX} of "
        f"{PREFIX + OWN} characters; {apart.ratio:.2f} where they share nothing",
        value=shared.ratio,
        goal=f"≥ {GOAL:g}, sharing nothing ≥ {COST:g}",
        holds=shared.ratio >= GOAL and apart.ratio >= COST,
        samples={
            "shared_on_tokens_per_s": shared.on_tokens_per_s,
            "shared_off_tokens_per_s": shared.off_tokens_per_s,
            "apart_on_tokens_per_s": apart.on_tokens_per_s,
            "apart_off_tokens_per_s": apart.off_tokens_per_s,
        },
        details=f"Answers of {TOKENS} tokens; the shared beginning was asked once before.\n\n"
        f"- shared: {shared.in_words()}\n- nothing shared, which is what it costs: "
        f"{apart.in_words()}",
    )


def _compared(stand: Stand, characters: int, prefix: str = "") -> Compared:
    on, off = (
        Crowd(stand.client, model, stand.passages(characters, prefix), STREAMS, [TOKENS])
        for model in ("kept", "anew")
    )
    return Compared(on, off, *in_turn(on, off, ROUNDS))
