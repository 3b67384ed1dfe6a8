"""P9C and P9S: an option of the engine on beside off: prefix caching, and a draft.

Prefix caching is measured where prompts share their beginning, and where they do not. The draft is
the model's own first layer, see `bench/language_model.py`. The share of its guesses that are right
depends on that file; the ratio depends on this share, which is shown beside it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from bench.crowd import Crowd
from bench.language_model import SMALL, Stand, WrittenModel, open_engine
from bench.measure import Rounds, Row, measure_in_turn
from millrace.models.config.language_spec import GenerationSpec

CACHED_STREAMS, CACHED_TOKENS, CACHED_ROUNDS = 16, 16, 5
PREFIX, OWN = 2000, 80
"""Characters that all prompts begin with, about 465 tokens, and of each one's own."""
CACHING_GOAL, CACHING_COST = 2.0, 0.95

GUESSES = 3
CHARACTERS = 200
TOKENS = 64
SINGLE, MANY = 1, 32
ROUNDS = {SINGLE: 11, MANY: 5}
"""By the number of streams; one alone is short, and differs more from prompt to prompt."""
DRAFT_GOAL = 1.0


@dataclass(frozen=True)
class Comparison:
    """Streams with an option and without, in turn, on the same prompts.

    Attributes:
        on: the streams with it.
        off: the streams without it.
        rounds: tokens per second with it, and without.
    """

    on: Crowd
    off: Crowd
    rounds: Rounds

    def describe(self, on: str, off: str) -> str:
        """Return the ratio, and the times to the first token."""
        ratio = f"{self.rounds.ratio:.3f}"
        return f"{ratio}; {on}: {self.on.describe()}; {off}: {self.off.describe()}"

    def samples(self, name: str, on: str, off: str) -> dict[str, Sequence[float]]:
        """Return the measurements, for the row."""
        return {
            f"{name}_{on}_tokens_per_s": self.rounds.a,
            f"{name}_{off}_tokens_per_s": self.rounds.b,
        }


def prefix_caching(stand: Stand) -> Row:
    """P9C: prefix caching on beside off."""
    with (
        stand.serving("kept", GenerationSpec()),
        stand.serving("anew", GenerationSpec(enable_prefix_caching=False)),
    ):
        shared = _compare_caching(stand, OWN, stand.made.text[:PREFIX])
        apart = _compare_caching(stand, PREFIX + OWN)
    return Row(
        name="P9C",
        what=f"prefix caching on ÷ off, tokens/s of {CACHED_STREAMS} streams that share {PREFIX} "
        f"of {PREFIX + OWN} characters; {apart.rounds.ratio:.2f} where they share nothing",
        value=shared.rounds.ratio,
        goal=f"≥ {CACHING_GOAL:g}, sharing nothing ≥ {CACHING_COST:g}",
        holds=shared.rounds.ratio >= CACHING_GOAL and apart.rounds.ratio >= CACHING_COST,
        samples={**shared.samples("shared", "on", "off"), **apart.samples("apart", "on", "off")},
        details=f"Answers of {CACHED_TOKENS} tokens; the shared beginning was asked once before."
        f"\n\n- shared: {shared.describe('on', 'off')}\n- nothing shared, which is what it costs: "
        f"{apart.describe('on', 'off')}",
    )


def _compare_caching(stand: Stand, characters: int, prefix: str = "") -> Comparison:
    on, off = (
        Crowd(
            stand.client, model, stand.passages(characters, prefix), CACHED_STREAMS, [CACHED_TOKENS]
        )
        for model in ("kept", "anew")
    )
    return Comparison(on, off, measure_in_turn(on, off, CACHED_ROUNDS))


def speculation(stand: Stand) -> Row:
    """P9S: a draft beside none, for one stream and for many."""
    guessing = GenerationSpec(draft="small/1", num_assistant_tokens=GUESSES)
    with stand.serving("drafted", guessing), stand.serving("plain", GenerationSpec()):
        single, many = (_compare_draft(stand, streams) for streams in (SINGLE, MANY))
    return Row(
        name="P9S",
        what="speculation on ÷ off, tokens/s of one stream; "
        f"{many.rounds.ratio:.2f} of {MANY} streams",
        value=single.rounds.ratio,
        goal=f"> {DRAFT_GOAL:g}",
        holds=single.rounds.ratio > DRAFT_GOAL,
        samples={
            **single.samples("single", "drafted", "plain"),
            **many.samples("many", "drafted", "plain"),
        },
        details=f"The draft is 1 of {SMALL.num_hidden_layers} layers and guesses {GUESSES} tokens "
        "at a time; "
        f"{_accepted_share(stand.made):.0%} of them were right. With a draft there is no prefix "
        "caching; no prompt here has a beginning that was asked before.\n\n"
        f"- one stream: {_describe_draft(single)}\n- {MANY} streams: {_describe_draft(many)}",
    )


def _compare_draft(stand: Stand, streams: int) -> Comparison:
    drafted, plain = (
        Crowd(stand.client, model, stand.passages(CHARACTERS + streams), streams, [TOKENS])
        for model in ("drafted", "plain")
    )
    return Comparison(drafted, plain, measure_in_turn(drafted, plain, ROUNDS[streams]))


def _describe_draft(found: Comparison) -> str:
    same = sum(a == b for a, b in zip(found.on.answers, found.off.answers, strict=True))
    return (
        f"{found.describe('with', 'without')}; {same} of {found.off.streams} answers of the last "
        "round are the same"
    )


def _accepted_share(made: WrittenModel) -> float:
    """Return the share of the draft's tokens that the model accepts, in the engine alone."""
    import openvino_genai as genai

    config = genai.GenerationConfig(max_new_tokens=TOKENS, ignore_eos=True, do_sample=False)
    config.num_assistant_tokens, config.apply_chat_template = GUESSES, False
    prompts = [made.text[start : start + CHARACTERS] for start in range(0, 8 * 911, 911)]
    drafted = open_engine(made.drafted, len(prompts), caching=False)
    found = drafted.generate(prompts, [config] * len(prompts))
    return float(found[0].extended_perf_metrics.get_draft_acceptance_rate())
