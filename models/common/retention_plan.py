"""Which of a model's numbered things stay: the newest of them, and those that somebody needs."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

RECENT = "recent"


@dataclass(frozen=True)
class RetentionPlan:
    """What stays and what goes.

    Attributes:
        kept: why, by number.
        removed: the numbers that go, the oldest first.
    """

    kept: Mapping[int, str]
    removed: tuple[int, ...]


def plan_retention(
    numbers: Collection[int], newest: int | None, needed: Mapping[int, str]
) -> RetentionPlan:
    """Decide what stays; the newest always does.

    Args:
        numbers: the numbers of all that is there, such as versions.
        newest: how many of the newest stay; None: all.
        needed: who needs something, by its number.
    """
    ordered = sorted(numbers)
    recent = set(ordered if newest is None else ordered[-newest:])
    kept = {
        number: needed.get(number, RECENT)
        for number in ordered
        if number in recent or number in needed
    }
    return RetentionPlan(kept, tuple(number for number in ordered if number not in kept))
