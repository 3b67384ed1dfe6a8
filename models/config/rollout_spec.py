"""The part `rollout`: how a new version gets all traffic."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from millrace.models.config import Spec


class JudgeSpec(Spec):
    """What a candidate must show before it gets more traffic, and with what certainty."""

    level: float = Field(
        0.05,
        gt=0,
        lt=0.5,
        description="Largest probability that a rollout promotes a candidate which is worse than "
        "the limits below; it is shared out over all steps and tests.",
    )
    min_agreement: float = Field(
        0.99,
        ge=0,
        lt=1,
        description="Share of rows that both versions must answer alike; of each request that "
        "both answered, one row counts.",
    )
    max_slowdown: float = Field(
        1.3, gt=1, description="Latency of the candidate over the champion's, geometric means."
    )
    max_failures: float = Field(
        0.01,
        gt=0,
        lt=1,
        description="Share of requests that the candidate fails and the champion answers.",
    )
    tolerance: float = Field(
        0.01,
        ge=0,
        description="Relative difference up to which two numbers are alike; where an output has "
        "several columns, its largest one must be the same.",
    )


class RolloutSpec(Spec):
    """How a new version gets all traffic."""

    kind: Literal["direct", "canary", "shadow"] = Field(
        "direct",
        description="direct: at once. canary: by rising shares of the requests. shadow: it answers "
        "nobody, and its answers are compared with the champion's.",
    )
    steps: tuple[Annotated[float, Field(gt=0, lt=100)], ...] = Field(
        (1, 10, 50), min_length=1, description="Percent of the requests in each step of a canary."
    )
    hold_s: float = Field(600, gt=0, description="Seconds that a step lasts before it is judged.")
    compare_percent: float = Field(
        10,
        gt=0,
        le=100,
        description="Percent of all requests that both versions answer in a canary, at most.",
    )
    sticky_key: str = Field(
        "sticky_key",
        min_length=1,
        description="The request parameter by whose value requests stay with one version.",
    )
    judge: JudgeSpec = Field(default_factory=JudgeSpec, description="What it takes to go on.")

    @model_validator(mode="after")
    def _require_rising_steps(self) -> "RolloutSpec":
        if list(self.steps) != sorted(set(self.steps)):
            raise ValueError("steps must rise, like [1, 10, 50]")
        return self
