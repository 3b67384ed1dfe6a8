"""What must change so that Prefect holds the deployments that it should: decisions, no effects.

A deployment is made as its spec says. Somebody's pause is a wish and stays; anything else that is
not ours is put back, and what would run foreign code is made anew, because an update of Prefect's
leaves in place what it does not name.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from millrace.flows.deployments.deployment_specs import DeploymentSpec


@dataclass(frozen=True)
class HeldSchedule:
    """One schedule of a deployment in Prefect; `cron` is None for one of another kind."""

    id: UUID
    cron: str | None
    timezone: str
    active: bool


@dataclass(frozen=True)
class Held:
    """One deployment as Prefect has it.

    Attributes:
        id: its id.
        name: its name.
        entrypoint: what it runs.
        description: what people read.
        tags: sorted.
        parameters: what every run is given.
        limit: runs at a time.
        collision_strategy: what becomes of one run more.
        paused: whether it is paused as a whole.
        schedules: when it runs.
        foreign: what it has that none of ours has, such as `pull_steps`.
    """

    id: UUID
    name: str
    entrypoint: str | None
    description: str
    tags: tuple[str, ...]
    parameters: Mapping[str, Any]
    limit: int | None
    collision_strategy: str
    paused: bool = False
    schedules: tuple[HeldSchedule, ...] = ()
    foreign: tuple[str, ...] = ()

    @property
    def is_paused(self) -> bool:
        """Whether somebody has paused it: as a whole, or every schedule."""
        return self.paused or bool(
            self.schedules and not any(each.active for each in self.schedules)
        )


@dataclass(frozen=True)
class Make:
    """Register a deployment.

    Attributes:
        spec: as it should be.
        why: what is not so.
        paused: whether its schedule stays paused.
        anew: the deployment to delete first; None updates.
    """

    spec: DeploymentSpec
    why: str
    paused: bool = False
    anew: UUID | None = None


@dataclass(frozen=True)
class Unschedule:
    """Take the schedules from a deployment whose pipeline is no longer scheduled."""

    deployment: UUID
    name: str
    schedules: tuple[UUID, ...]


def decide(
    specs: Iterable[DeploymentSpec],
    held: Mapping[str, Held],
    others: Sequence[Held] = (),
    paused: Collection[str] = (),
) -> tuple[Make | Unschedule, ...]:
    """Decide what to change; nothing where everything is as it should be.

    Args:
        specs: what should be there.
        held: what is there under the name and the flow of each spec.
        others: this home's other deployments.
        paused: the deployments that were paused when last seen, should they be gone.
    """
    changes: list[Make | Unschedule] = []
    for spec in specs:
        found = held.get(spec.name)
        if found is None:
            changes.append(Make(spec, "it was missing", spec.name in paused))
        elif found.foreign:
            why = f"it had foreign {', '.join(found.foreign)}"
            changes.append(Make(spec, why, found.is_paused, found.id))
        elif differing := _differing(spec, found):
            why = f"it had another {', '.join(differing)}"
            changes.append(Make(spec, why, found.is_paused))
    for other in others:
        if other.schedules:
            ids = tuple(each.id for each in other.schedules)
            changes.append(Unschedule(other.id, other.name, ids))
    return tuple(changes)


def _differing(spec: DeploymentSpec, held: Held) -> list[str]:
    """Return the names of what is not as declared."""
    wanted = [(spec.cron, spec.timezone)] if spec.cron else []
    pairs = {
        "entrypoint": (spec.entrypoint, held.entrypoint),
        "schedule": (wanted, [(each.cron, each.timezone) for each in held.schedules]),
        "parameters": (dict(spec.parameters), dict(held.parameters)),
        "tags": (tuple(sorted(spec.tags)), held.tags),
        "description": (spec.description or held.description, held.description),  # or the flow's
        "limit": (spec.limit, held.limit),
        "collision strategy": (spec.collision_strategy, held.collision_strategy),
    }
    return [name for name, (ours, theirs) in pairs.items() if ours != theirs]
