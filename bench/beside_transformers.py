"""P9G: tokens per second of streams through Triton, beside transformers.generate.

It compares what a pipeline serves with a script: the int8 variant behind Triton, with answers of
several lengths, beside the checkpoint in float32 in one batch. In transformers a batch goes on
until its longest answer is done; only tokens that were asked for count. The smallest difference,
float32 on both sides and answers of one length, is measured too.

transformers runs as its users run it: padded on the left, with its cache of keys and values,
scaled_dot_product_attention, and one thread or one per core, whichever is faster: on a busy machine
threads that wait for each other are slower than one.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch

from bench.crowd import Crowd, Passages, repeat_to
from bench.language_model import Stand, WrittenModel
from bench.measure import Row, measure_in_turn
from millrace.models.common.hardware import this_machine
from millrace.models.config.language_spec import GenerationSpec

ROUNDS, ROUNDS_BESIDE = 5, 3
STREAMS = 32
MIXED = (16, 128, 32, 64)
"""Lengths of the answers in tokens, in turn: 60 on average."""
EVEN = (64,)
TRIED = (8,)
"""Lengths of the answers while a number of threads is tried."""
CHARACTERS = 200
GOAL = 3.0


@dataclass
class Transformers:
    """The same prompts in one batch.

    Attributes:
        made: the model.
        passages: the prompts.
        tokens: lengths of the answers, in turn.
        answers: texts of the last call.
    """

    made: WrittenModel
    passages: Passages
    tokens: Sequence[int]
    answers: list[str] = field(default_factory=list, init=False)

    def __call__(self) -> float:
        """Generate once, and return the tokens per second that were asked for."""
        prompts, most = self.passages.take(STREAMS), max(self.tokens)
        start = time.perf_counter()
        _, new = self.made.generate(prompts, most, least=most)
        wanted = repeat_to(self.tokens, STREAMS)
        ids = [row[:count] for row, count in zip(new, wanted, strict=True)]
        self.answers = self.made.tokenizer.batch_decode(ids, skip_special_tokens=True)
        return sum(wanted) / (time.perf_counter() - start)


def set_fastest_threads(theirs: Transformers) -> int:
    """Set the number of torch's threads with which transformers is fastest, and return it."""
    trial = replace(theirs, tokens=TRIED)

    def speed(number: int) -> float:
        torch.set_num_threads(number)
        return trial()

    trial()  # the first call is slower, with any number
    best = max(sorted({1, this_machine().cores}), key=speed)
    torch.set_num_threads(best)
    theirs.passages.rewind()
    return best


def beside_transformers(stand: Stand) -> Row:
    """P9G: streams through Triton beside transformers.generate."""
    crowd = partial(Crowd, stand.client, streams=STREAMS)
    theirs = Transformers(stand.made, stand.passages(CHARACTERS), MIXED)
    threads = set_fastest_threads(theirs)
    with stand.serving("int8", GenerationSpec(), stand.made.int8) as model:
        ours = crowd(model=model, passages=stand.passages(CHARACTERS), tokens=MIXED)
        mixed = measure_in_turn(ours, theirs, ROUNDS)
    even = Transformers(stand.made, stand.passages(CHARACTERS), EVEN)
    with stand.serving("fp32", GenerationSpec()) as model:
        exact = crowd(model=model, passages=stand.passages(CHARACTERS), tokens=EVEN)
        least = measure_in_turn(exact, even, ROUNDS_BESIDE)
    same = sum(x == y for x, y in zip(exact.answers, even.answers, strict=True))
    return Row(
        name="P9G",
        what=f"int8 through Triton ÷ transformers.generate, tokens/s of {STREAMS} answers of "
        f"{', '.join(map(str, sorted(MIXED)))} tokens",
        value=mixed.ratio,
        goal=f"≥ {GOAL:g}",
        holds=mixed.ratio >= GOAL,
        samples={
            "int8_tokens_per_s": mixed.a,
            "transformers_tokens_per_s": mixed.b,
            "fp32_even_tokens_per_s": least.a,
            "transformers_even_tokens_per_s": least.b,
        },
        details=f"- float32 on both sides, {EVEN[0]} tokens each: {least.ratio:.3f}; {same} of "
        f"{STREAMS} answers of the last round are the same to the letter; where the model would "
        "end its text, transformers takes the next best token\n"
        f"- transformers has {threads} threads, with which it is fastest here",
    )
