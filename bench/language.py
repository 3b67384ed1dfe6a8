"""P9: tokens per second of streams through Triton, beside the engine alone on the same prompts.

The number of streams stays the same: where one ends, the next begins. The engine alone works on as
many at a time. The goal is for the layers of SmolLM2-135M; in a smaller model, client and server
take a larger share of a step's time.

The engine alone is the same pipeline in this process, in float32 as on the server. Either side is
idle while the other is measured. No prompt is sent twice, so prefix caching, which is on, saves
nothing.
"""

import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

from bench.beside_transformers import beside_transformers
from bench.crowd import Crowd, Passages, repeat_to
from bench.language_model import SERVED, SMALL, Stand, open_engine, own_stand
from bench.language_options import prefix_caching, speculation
from bench.measure import Rounds, Row, measure_in_turn, measure_rows
from millrace.models.config.language_spec import GenerationSpec

ROUNDS = 3
INTERVALS = (None, 1, 8)
"""Tokens of a piece of a stream; by default as many as come within some time."""
STREAMS, TURNS = 32, 2
TOKENS = (96, 64, 160)
"""Lengths of the answers in tokens, in turn."""
CHARACTERS = 200
ALONE, FIRST = 40, 2
"""Number of requests one after the other, and tokens of each, for the time to the first token."""
GOAL = 0.85


def rows(wanted: Collection[str]) -> Iterator[Row]:
    """Write models, serve them, and measure the wanted rows."""
    yield from measure_rows({"P9": streams}, wanted)
    if {"P9G", "P9C", "P9S"} & set(wanted):
        with own_stand(SMALL) as stand:
            measures = {
                "P9G": partial(beside_transformers, stand),
                "P9C": partial(prefix_caching, stand),
                "P9S": partial(speculation, stand),
            }
            yield from measure_rows(measures, wanted)


def streams() -> Row:
    """P9: streams of the default interval; and of a small model, whose steps take a quarter."""
    with own_stand(SERVED) as stand:
        of_served = beside_engine(stand, INTERVALS[:1])
    with own_stand(SMALL) as stand:
        of_small = beside_engine(stand, INTERVALS)
    served, small = of_served[0].rounds, of_small[0].rounds
    return Row(
        name="P9",
        what=f"Triton ÷ engine alone, tokens/s of {STREAMS} streams kept up",
        value=served.ratio,
        goal=f"≥ {GOAL}",
        holds=served.ratio >= GOAL,
        samples={
            "served_tokens_per_s": served.a,
            "served_engine_tokens_per_s": served.b,
            "small_tokens_per_s": small.a,
            "small_engine_tokens_per_s": small.b,
        },
        details="\n".join(
            f"- {each.parameters / 1e6:.0f} million weights, {each.description}"
            for each in (*of_served, *of_small)
        ),
    )


@dataclass(frozen=True)
class Beside:
    """Streams through Triton beside the engine alone.

    Attributes:
        parameters: number of the model's weights.
        rounds: tokens per second of Triton, and of the engine alone.
        description: the ratio, and the times to the first token.
    """

    parameters: int
    rounds: Rounds
    description: str


def beside_engine(stand: Stand, intervals: Sequence[int | None]) -> list[Beside]:
    """Measure streams with each of the intervals."""
    ours, theirs = stand.passages(CHARACTERS), stand.passages(CHARACTERS)
    alone = partial(run_engine, open_engine(stand.made.folder, STREAMS), theirs)
    found = []
    for interval in intervals:
        model = f"every{interval}"
        with stand.serving(model, GenerationSpec(stream_interval=interval)):
            crowd = Crowd(stand.client, model, ours, STREAMS, TOKENS, TURNS)
            rounds = measure_in_turn(crowd, alone, ROUNDS)
            single = Crowd(stand.client, model, stand.passages(CHARACTERS + 1), 1, [FIRST])
            for _ in range(ALONE):
                single()
        pieces = "as many tokens as come in time" if interval is None else interval
        description = (
            f"pieces of {pieces}: {rounds.ratio:.3f}; one stream: {single.describe()}; "
            f"{STREAMS} that begin at once: {crowd.describe()}"
        )
        found.append(Beside(stand.made.model.num_parameters(), rounds, description))
    return found


def run_engine(pipeline: Any, passages: Passages) -> float:
    """Return the tokens per second of the engine with a client that takes no time.

    The engine takes all prompts that it is given, also more than it may work on at a time. So the
    next one is added when an answer has ended. The answers are decoded at the end.
    """
    import openvino_genai as genai

    prompts = passages.take(STREAMS * TURNS)
    wanted = repeat_to(TOKENS, len(prompts))
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
