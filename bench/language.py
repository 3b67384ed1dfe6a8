"""P9: tokens per second of streams through Triton, beside the engine alone on the same prompts.

So many streams are kept up: where one ends, the next begins, as for clients who come and go; and
the engine alone works on as many at a time. The goal is for the layers of SmolLM2-135M; the smaller
a model is, the more of a step's time is what a client and a server do.

The engine alone is the same pipeline in this process, in float32 as on the server; whichever does
not have its turn is idle. No prompt is asked twice, so prefix caching, which is on, saves nothing.
"""

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

from bench import beside_transformers, prefix_caching, speculation
from bench.catalog import attempt
from bench.crowd import Crowd, Passages, dealt
from bench.language_model import SERVED, SMALL, engine
from bench.language_stand import Stand, own_stand
from bench.rounds import in_turn, ratio
from bench.row import Row
from millrace.models.config.language_spec import GenerationSpec

ROUNDS = 3
INTERVALS = (None, 1, 8)
"""Tokens between two pieces of a stream; by default as many as come in some time."""
STREAMS, TURNS = 32, 2
TOKENS = (96, 64, 160)
"""Of the answers, in turn."""
CHARACTERS = 200
ALONE, FIRST = 40, 2
"""Requests one after the other, and tokens of each, for the time to the first token."""
GOAL = 0.85


def rows(wanted: Collection[str]) -> Iterator[Row]:
    """Make models, serve them on a Triton of our own, and measure."""
    measures: dict[str, Callable[[Stand], Row]] = {
        "P9G": beside_transformers.row,
        "P9C": prefix_caching.row,
        "P9S": speculation.row,
    }
    if "P9" in wanted:
        yield attempt("P9", streams)
    if not set(measures).isdisjoint(wanted):
        with own_stand(SMALL) as stand:
            for name, measure in measures.items():
                if name in wanted:
                    yield attempt(name, partial(measure, stand))


def streams() -> Row:
    """P9: streams of the default interval; and of a small model, whose steps take a quarter."""
    with own_stand(SERVED) as stand:
        of_served = beside_engine(stand, INTERVALS[:1])
    with own_stand(SMALL) as stand:
        of_small = beside_engine(stand, INTERVALS)
    value = of_served[0].ratio
    return Row(
        name="P9",
        what=f"Triton ÷ engine alone, tokens/s of {STREAMS} streams kept up",
        value=value,
        goal=f"≥ {GOAL}",
        holds=value >= GOAL,
        samples={**of_served[0].samples("served"), **of_small[0].samples("small")},
        details="\n".join(
            f"- {each.parameters / 1e6:.0f} million weights, {each.told}"
            for each in (*of_served, *of_small)
        ),
    )


@dataclass(frozen=True)
class Beside:
    """Streams through Triton beside the engine alone.

    Attributes:
        parameters: of the model.
        ours: tokens per second of each round; so theirs.
        told: the ratio, and the times to the first token.
    """

    parameters: int
    ours: list[float]
    theirs: list[float]
    told: str

    @property
    def ratio(self) -> float:
        """Triton ÷ engine alone."""
        return ratio(self.ours, self.theirs)

    def samples(self, name: str) -> dict[str, list[float]]:
        """Return what was measured, for the row."""
        return {f"{name}_tokens_per_s": self.ours, f"{name}_engine_tokens_per_s": self.theirs}


def beside_engine(stand: Stand, intervals: Sequence[int | None]) -> list[Beside]:
    """Measure streams of each of the intervals."""
    ours, theirs = stand.passages(CHARACTERS), stand.passages(CHARACTERS)
    alone = partial(engine_alone, engine(stand.made.folder, STREAMS), theirs)
    found = []
    for interval in intervals:
        model = f"every{interval}"
        with stand.serving(model, GenerationSpec(stream_interval=interval)):
            crowd = Crowd(stand.client, model, ours, STREAMS, TOKENS, TURNS)
            a, b = in_turn(crowd, alone, ROUNDS)
            single = Crowd(stand.client, model, stand.passages(CHARACTERS + 1), 1, [FIRST])
            for _ in range(ALONE):
                single()
        pieces = "as many tokens as come in time" if interval is None else interval
        told = (
            f"pieces of {pieces}: {ratio(a, b):.3f}; one stream: {single.in_words()}; "
            f"{STREAMS} that begin at once: {crowd.in_words()}"
        )
        found.append(Beside(stand.made.model.num_parameters(), a, b, told))
    return found


def engine_alone(pipeline: Any, passages: Passages) -> float:
    """Return the tokens per second of the engine with a client that takes no time.

    Given more prompts than it may work on at a time, the engine takes them all; so the next one is
    added where an answer has ended. The answers are decoded at the end.
    """
    import openvino_genai as genai

    prompts = passages.take(STREAMS * TURNS)
    wanted = dealt(TOKENS, len(prompts))
    start = time.perf_counter()
    coming = enumerate(zip(prompts, wanted, strict=True))
    running: list[Any] = []
    answers: list[list[int]] = []
    while len(answers) < len(prompts):
        for number, (prompt, tokens) in islice(coming, STREAMS - len(running)):
            config = genai.GenerationConfig(max_new_tokens=tokens, ignore_eos=True, do_sample=False)
            config.apply_chat_template = False
            running.append(pipeline.add_request(number, prompt, config))
        pipeline.step()
        ended = [each for each in running if each.get_status() != genai.GenerationStatus.RUNNING]
        answers += [each.read_all()[0].generated_ids for each in ended]
        running = [each for each in running if each not in ended]
    pipeline.get_tokenizer().decode(answers)
    seconds = time.perf_counter() - start
    if sum(map(len, answers)) != sum(wanted):
        raise ValueError(f"{sum(map(len, answers))} tokens came of {sum(wanted)}")
    return sum(wanted) / seconds
