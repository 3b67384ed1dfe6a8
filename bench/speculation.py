"""P9S: a draft beside none, for one stream and for many.

The draft is the model's own first layer, see `bench/language_model.py`. How much of what it guesses
is right is a choice of that file, and is told beside the ratio, which depends on it.
"""

from dataclasses import dataclass

from bench.crowd import Crowd
from bench.language_model import SMALL, Written, engine
from bench.language_stand import Stand
from bench.rounds import in_turn, ratio
from bench.row import Row
from millrace.models.config.language_spec import GenerationSpec

GUESSES = 3
CHARACTERS = 200
TOKENS = 64
SINGLE, MANY = 1, 32
ROUNDS = {SINGLE: 11, MANY: 5}
"""By streams; one alone is short, and differs more from prompt to prompt."""
GOAL = 1.0


@dataclass(frozen=True)
class Compared:
    """With a draft and without, in turn, asked the same."""

    drafted: Crowd
    plain: Crowd
    drafted_tokens_per_s: list[float]
    plain_tokens_per_s: list[float]

    @property
    def ratio(self) -> float:
        """Tokens per second, with ÷ without."""
        return ratio(self.drafted_tokens_per_s, self.plain_tokens_per_s)

    @property
    def same(self) -> int:
        """Answers of the last round that are the same to the letter."""
        pairs = zip(self.drafted.answers, self.plain.answers, strict=True)
        return sum(mine == other for mine, other in pairs)

    def in_words(self) -> str:
        """Return the ratio, the times to the first token, and whether the answers are the same."""
        return (
            f"{self.ratio:.3f}; with: {self.drafted.in_words()}; without: {self.plain.in_words()}; "
            f"{self.same} of {self.plain.streams} answers of the last round are the same"
        )


def row(stand: Stand) -> Row:
    """Measure P9S."""
    guessing = GenerationSpec(draft="small/1", num_assistant_tokens=GUESSES)
    with stand.serving("drafted", guessing), stand.serving("plain", GenerationSpec()):
        single, many = (_compared(stand, streams) for streams in (SINGLE, MANY))
    return Row(
        name="P9S",
        what=f"speculation on ÷ off, tokens/s of one stream; {many.ratio:.2f} of {MANY} streams",
        value=single.ratio,
        goal=f"> {GOAL:g}",
        holds=single.ratio > GOAL,
        samples={
            "single_drafted_tokens_per_s": single.drafted_tokens_per_s,
            "single_plain_tokens_per_s": single.plain_tokens_per_s,
            "many_drafted_tokens_per_s": many.drafted_tokens_per_s,
            "many_plain_tokens_per_s": many.plain_tokens_per_s,
        },
        details=f"The draft is 1 of {SMALL.num_hidden_layers} layers and guesses {GUESSES} tokens "
        "at a time; "
        f"{_accepted(stand.made):.0%} of them were right. With a draft there is no prefix caching; "
        "no prompt here has a beginning that was asked before.\n\n"
        f"- one stream: {single.in_words()}\n- {MANY} streams: {many.in_words()}",
    )


def _compared(stand: Stand, streams: int) -> Compared:
    drafted, plain = (
        Crowd(stand.client, model, stand.passages(CHARACTERS + streams), streams, [TOKENS])
        for model in ("drafted", "plain")
    )
    return Compared(drafted, plain, *in_turn(drafted, plain, ROUNDS[streams]))


def _accepted(made: Written) -> float:
    """Return the share of the draft's tokens that the model took, of the engine alone."""
    import openvino_genai as genai

    config = genai.GenerationConfig(max_new_tokens=TOKENS, ignore_eos=True, do_sample=False)
    config.num_assistant_tokens, config.apply_chat_template = GUESSES, False
    prompts = [made.text[start : start + CHARACTERS] for start in range(0, 8 * 911, 911)]
    drafted = engine(made.drafted, len(prompts), caching=False)
    found = drafted.generate(prompts, [config] * len(prompts))
    return float(found[0].extended_perf_metrics.get_draft_acceptance_rate())
