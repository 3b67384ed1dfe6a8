"""P9G: tokens per second of streams through Triton, beside transformers.generate.

What the line gives instead of a script: the int8 form behind Triton, asked for answers of several
lengths, beside the checkpoint in float32 in one batch. There a batch goes on until its longest
answer is done; only tokens that were asked for count. Float32 on both sides and answers of one
length, the least that there is between the two, is measured beside it.

transformers is asked as its users ask it: padded on the left, with its cache of keys and values,
scaled_dot_product_attention, and one thread or one to each core, which of the two is faster: on a
busy machine threads that wait for each other are slower than one.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch

from bench.crowd import Crowd, Passages, dealt
from bench.language_model import Written
from bench.language_stand import Stand
from bench.rounds import in_turn, ratio
from bench.row import Row
from millrace.models.common.hardware import this_machine
from millrace.models.config.language_spec import GenerationSpec

ROUNDS, ROUNDS_BESIDE = 5, 3
STREAMS = 32
MIXED = (16, 128, 32, 64)
"""Tokens of the answers, in turn: 60 on average."""
EVEN = (64,)
TRIED = (8,)
"""When a number of threads is tried."""
CHARACTERS = 200
GOAL = 3.0


@dataclass
class Transformers:
    """The same prompts in one batch.

    Attributes:
        made: the model.
        passages: the prompts.
        tokens: of the answers, in turn.
        answers: texts of the last time.
    """

    made: Written
    passages: Passages
    tokens: Sequence[int]
    answers: list[str] = field(default_factory=list, init=False)

    def __call__(self) -> float:
        """Ask once, and return the tokens per second that were asked for."""
        tokenizer, most = self.made.tokenizer, max(self.tokens)
        tokenizer.padding_side = "left"
        prompts = self.passages.take(STREAMS)
        start = time.perf_counter()
        asked = tokenizer(prompts, return_tensors="pt", padding=True)
        with torch.no_grad():
            found = self.made.model.generate(
                input_ids=asked.input_ids,
                attention_mask=asked.attention_mask,
                max_new_tokens=most,
                min_new_tokens=most,
                do_sample=False,
                pad_token_id=tokenizer.pad_token_id,
            )
        wanted = dealt(self.tokens, STREAMS)
        ids = [row[:count] for row, count in zip(found[:, -most:], wanted, strict=True)]
        self.answers = tokenizer.batch_decode(ids, skip_special_tokens=True)
        return sum(wanted) / (time.perf_counter() - start)


def fastest_threads(theirs: Transformers) -> int:
    """Let torch have as many threads as transformers is fastest with, and return how many."""
    trial = replace(theirs, tokens=TRIED)

    def speed(number: int) -> float:
        torch.set_num_threads(number)
        return trial()

    trial()  # the first time is slower, with however many
    best = max(sorted({1, this_machine().cores}), key=speed)
    torch.set_num_threads(best)
    theirs.passages.rewind()
    return best


def row(stand: Stand) -> Row:
    """Measure P9G."""
    crowd = partial(Crowd, stand.client, streams=STREAMS)
    theirs = Transformers(stand.made, stand.passages(CHARACTERS), MIXED)
    threads = fastest_threads(theirs)
    with stand.serving("int8", GenerationSpec(), stand.made.int8) as model:
        ours = crowd(model=model, passages=stand.passages(CHARACTERS), tokens=MIXED)
        a, b = in_turn(ours, theirs, ROUNDS)
    even = Transformers(stand.made, stand.passages(CHARACTERS), EVEN)
    with stand.serving("fp32", GenerationSpec()) as model:
        exact = crowd(model=model, passages=stand.passages(CHARACTERS), tokens=EVEN)
        c, d = in_turn(exact, even, ROUNDS_BESIDE)
    same = sum(mine == other for mine, other in zip(exact.answers, even.answers, strict=True))
    value = ratio(a, b)
    return Row(
        name="P9G",
        what=f"int8 through Triton ÷ transformers.generate, tokens/s of {STREAMS} answers of "
        f"{', '.join(map(str, sorted(MIXED)))} tokens",
        value=value,
        goal=f"≥ {GOAL:g}",
        holds=value >= GOAL,
        samples={
            "int8_tokens_per_s": a,
            "transformers_tokens_per_s": b,
            "fp32_even_tokens_per_s": c,
            "transformers_even_tokens_per_s": d,
        },
        details=f"- float32 on both sides, {EVEN[0]} tokens each: {ratio(c, d):.3f}; {same} of "
        f"{STREAMS} answers of the last round are the same to the letter; where the model would "
        "end its text, transformers takes the next best token\n"
        f"- transformers has {threads} threads, with which it is fastest here",
    )
