"""`serving.slo`: the latency goal that a version's serving configuration has to meet."""

from collections.abc import Mapping
from itertools import chain
from typing import Annotated

from pydantic import BeforeValidator, Field, model_validator

from millrace.models.config import Spec

MOST_RATE, MOST_MS, MOST_OFTEN = 1e6, 3.6e6, 1e12
"""Requests per second, milliseconds and relative numbers beyond which a value is a mistake."""
Sizes = Mapping[Annotated[int, Field(ge=1)], Annotated[float, Field(gt=0, le=MOST_OFTEN)]]
"""A distribution of sizes: how often each occurs, relative to the others."""


def _wrap_size(value: object) -> object:
    """Accept `rows: 4` as short for `rows: {4: 1}`; refuse `true`, which pydantic reads as 1."""
    if isinstance(value, Mapping) and any(isinstance(each, bool) for each in chain(*value.items())):
        raise ValueError("true and false are not numbers")
    return {value: 1} if isinstance(value, int) and not isinstance(value, bool) else value


class SloSpec(Spec):
    """The load and the latency that clients must see at it.

    A model that answers at once has `p99_ms`. A model that streams has `ttft_p99_ms`, `tpot_p99_ms`
    or both.
    """

    rate: float = Field(
        gt=0, le=MOST_RATE, description="Requests per second, of clients that do not wait."
    )
    p99_ms: float | None = Field(
        None, gt=0, le=MOST_MS, description="Largest p99 latency of a request, in milliseconds."
    )
    rows: Annotated[Sizes, BeforeValidator(_wrap_size)] = Field(
        default_factory=lambda: {1: 1.0},
        min_length=1,
        description="Rows of a request: a number, or how often each number occurs, such as "
        "{1: 9, 16: 1}.",
    )
    ttft_p99_ms: float | None = Field(
        None, gt=0, le=MOST_MS, description="Largest p99 time to the first token, in milliseconds."
    )
    tpot_p99_ms: float | None = Field(
        None,
        gt=0,
        le=MOST_MS,
        description="Largest p99 time per output token after the first, in milliseconds; the mean "
        "of each answer counts.",
    )
    prompt_tokens: Annotated[Sizes, BeforeValidator(_wrap_size)] = Field(
        default_factory=lambda: {128: 1.0},
        min_length=1,
        description="Tokens of a prompt: a number, or how often each number occurs.",
    )
    answer_tokens: Annotated[Sizes, BeforeValidator(_wrap_size)] = Field(
        default_factory=lambda: {64: 1.0},
        min_length=1,
        description="Tokens of an answer: a number, or how often each number occurs.",
    )

    @model_validator(mode="after")
    def _require_one_bound(self) -> "SloSpec":
        streamed = self.ttft_p99_ms is not None or self.tpot_p99_ms is not None
        if streamed and self.p99_ms is not None:
            raise ValueError("serving.slo has p99_ms, or ttft_p99_ms and tpot_p99_ms, not both")
        if not streamed and self.p99_ms is None:
            raise ValueError("serving.slo needs p99_ms, or for a causal_lm ttft_p99_ms")
        return self

    @property
    def is_streamed(self) -> bool:
        """Whether the goal is one of a model that streams its answers."""
        return self.p99_ms is None

    @property
    def mean_rows(self) -> float:
        """The mean number of rows of a request."""
        return mean_of(self.rows)


def mean_of(sizes: Mapping[int, float]) -> float:
    """Return the mean of a distribution of sizes."""
    return sum(size * often for size, often in sizes.items()) / sum(sizes.values())
