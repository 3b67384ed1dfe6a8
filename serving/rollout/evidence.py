"""How much traffic a rollout needs: with less, the judge of its steps cannot tell.

The figures are those of a candidate that fails nothing and always agrees; any other one needs more,
and so does one whose latencies scatter.
"""

import math

from millrace.models.config.rollout_spec import JudgeSpec, RolloutSpec
from millrace.serving.rollout.judge import TESTS
from millrace.serving.rollout.rollout import compare_percent, weights


def fewest(spec: JudgeSpec, tests: int) -> tuple[int, int]:
    """Return how many requests a candidate must answer in a step, and how many be compared.

    They solve the judge's bounds (Clopper and Pearson) for a step without a failure and with every
    row alike, where these are powers: `(1 - limit)^n` and `limit^n` equal the level of one test.

    Args:
        spec: the limits and the level.
        tests: tests in the whole rollout.
    """
    level = math.log(spec.level / tests)
    answered = math.ceil(level / math.log1p(-spec.max_failures))
    compared = math.ceil(level / math.log(spec.min_agreement)) if spec.min_agreement else 0
    return answered, compared


def fewest_to_model(spec: RolloutSpec) -> tuple[int, ...]:
    """Return for each step how many requests the model must get for the candidate to get enough."""
    steps = weights(spec)
    answered, compared = fewest(spec.judge, TESTS * len(steps)) if steps else (0, 0)
    needed = []
    for weight in steps:
        share = weight / 100 or 1.0  # in a shadow it is asked all that the champion is
        both = share * compare_percent(spec, weight) / 100
        needed.append(round(max(answered / share, compared / both)))
    return tuple(needed)


def in_words(spec: RolloutSpec) -> str:
    """Return for people what a rollout needs; it must not be direct."""
    needed = [
        f"{requests:,} requests{f' at {weight:g} %' * bool(weight)}"
        f" ({requests / spec.hold_s:,.1f}/s)"
        for weight, requests in zip(weights(spec), fewest_to_model(spec), strict=True)
    ]
    return (
        f"rollout: a step of {spec.hold_s:g} s needs at least {', '.join(needed)}; "
        "with less traffic it stays inconclusive, and the version goes back"
    )
