"""Which configurations may be the best ones, and which one is chosen."""

from collections.abc import Iterable, Mapping, Sequence

from millrace.serving.profile.workload import Configuration, Considered

ALIKE = 0.7
"""Share of the best capacity from which a configuration may be the best one after all."""
GAIN = 1.05
"""How many times as much a configuration must take to replace the one of the pipeline file."""


def by_capacity(considered: Iterable[Considered], bounds: Mapping[str, float]) -> list[Considered]:
    """Return configurations in the order of their expected capacity, the best one first.

    Args:
        considered: the configurations.
        bounds: the bounds of the goal, in milliseconds.
    """

    def nearness(each: Considered) -> float:
        return max(each.at_goal[key] / bound for key, bound in bounds.items())

    return sorted(considered, key=lambda each: (-each.predicted, nearness(each)))


def shortlist(ranked: Sequence[Considered], current: Configuration, most: int) -> list[Considered]:
    """Return the configurations that may be the best one, and the one of the pipeline file.

    One of each group comes first, as these differ most.

    Args:
        ranked: all configurations, best first.
        current: the configuration of the pipeline file.
        most: how many may be the best one.
    """
    best = ranked[0].predicted
    alike = [each for each in ranked if each.predicted >= ALIKE * best]
    seen: set[object] = set()
    first: list[Considered] = []
    for each in alike:
        if each.configuration.group not in seen:
            seen.add(each.configuration.group)
            first.append(each)
    rest = [each for each in alike if each not in first]
    chosen = [*first, *rest][:most]
    if all(each.configuration != current for each in chosen):
        chosen.append(next(each for each in ranked if each.configuration == current))
    return chosen


def choose(decided: Sequence[Considered], current: Configuration) -> tuple[Considered, Considered]:
    """Return the configuration that takes most, and the one of the pipeline file.

    The one of the pipeline file stays unless another takes clearly more.
    """
    present = next(each for each in decided if each.configuration == current)
    best = max(decided, key=lambda each: each.measured or 0.0)
    is_better = (best.measured or 0.0) > GAIN * (present.measured or 0.0)
    return (best if is_better else present), present
