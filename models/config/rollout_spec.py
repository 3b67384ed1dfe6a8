"""The part `rollout`: how traffic moves to a new version."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from millrace.models.config import Spec


class JudgeSpec(Spec):
    """The limits that a candidate must meet before it gets more traffic, and how certainly."""

    level: float = Field(
        0.05,
        gt=0,
        lt=0.5,
        description="Largest probability that a rollout promotes a candidate that is worse than "
        "the other limits of rollout.judge. This probability is divided among all steps and tests.",
    )
    min_agreement: float = Field(
        0.99,
        ge=0,
        lt=1,
        description="Smallest share of rows that both versions answer alike. Only one row is "
        "counted of each request that both versions answered.",
    )
    max_slowdown: float = Field(
        1.3,
        gt=1,
        description="Largest ratio of the candidate's latency to the champion's; each latency is a "
        "geometric mean.",
    )
    p99_ms: float | None = Field(
        None,
        gt=0,
        description="Largest p99 latency of the candidate in milliseconds, from the splitter's "
        "call to its answer; null: serving.slo.p99_ms, if there is one.",
    )
    max_failures: float = Field(
        0.01,
        gt=0,
        lt=1,
        description="Largest share of requests that the candidate fails and the champion answers.",
    )
    tolerance: float = Field(
        0.01,
        ge=0,
        description="Largest relative difference of two numbers that count as alike. Rows of an "
        "output with several columns are alike if their largest value is in the same column.",
    )


class RolloutSpec(Spec):
    """How traffic moves to a new version."""

    kind: Literal["direct", "canary", "shadow"] = Field(
        "direct",
        description="direct: the new version gets all traffic at once. canary: it gets rising "
        "shares of the requests. shadow: clients get only the champion's answers, and the new "
        "version's are compared with them.",
    )
    steps: tuple[Annotated[float, Field(gt=0, lt=100)], ...] = Field(
        (1, 10, 50), min_length=1, description="Percent of the requests in each step of a canary."
    )
    hold_s: float = Field(600, gt=0, description="Seconds that a step lasts before it is judged.")
    compare_percent: float = Field(
        10,
        gt=0,
        le=100,
        description="Largest percentage of all requests that both versions answer in a canary.",
    )
    sticky_key: str = Field(
        "sticky_key",
        min_length=1,
        description="Name of a request parameter; requests with the same value of it go to the "
        "same version.",
    )
    judge: JudgeSpec = Field(default_factory=JudgeSpec, description="Limits for the next step.")

    @model_validator(mode="after")
    def _require_rising_steps(self) -> "RolloutSpec":
        if list(self.steps) != sorted(set(self.steps)):
            raise ValueError("steps must rise, like [1, 10, 50]")
        return self

    def with_goal(self, p99_ms: float | None) -> "RolloutSpec":
        """Return the settings with a goal for the p99, unless they have one of their own."""
        judge = self.judge.model_copy(update={"p99_ms": self.judge.p99_ms or p99_ms})
        return self.model_copy(update={"judge": judge})
