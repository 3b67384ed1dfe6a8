"""Decides what to change so that Prefect holds the deployments that it should; no effects.

A deployment is registered as its spec says. A pause is somebody's choice and stays. Any other
difference is reverted. A deployment that would run foreign code is deleted first, because an update
of Prefect's keeps the fields that it does not name.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from millrace.flows.deployments.deployment_specs import DeploymentSpec


@dataclass(frozen=True)
class ExistingSchedule:
    """One schedule of a deployment in Prefect; `cron` is None for one of another kind."""

    id: UUID
    cron: str | None
    timezone: str
    is_active: bool


@dataclass(frozen=True)
class ExistingDeployment:
    """One deployment in Prefect.

    Attributes:
        id: its id.
        name: its name.
        entrypoint: what it runs.
        description: the text for people.
        tags: sorted.
        parameters: of every run.
        limit: runs at a time.
        collision_strategy: what happens to a run beyond the limit.
        has_pause: whether it is paused as a whole.
        schedules: when it runs.
        foreign: fields that it has and ours never have, such as `pull_steps`.
    """

    id: UUID
    name: str
    entrypoint: str | None
    description: str
    tags: tuple[str, ...]
    parameters: Mapping[str, Any]
    limit: int | None
    collision_strategy: str
    has_pause: bool = False
    schedules: tuple[ExistingSchedule, ...] = ()
    foreign: tuple[str, ...] = ()

    @property
    def is_paused(self) -> bool:
        """Whether somebody has paused it: as a whole, or every schedule."""
        return self.has_pause or bool(
            self.schedules and not any(each.is_active for each in self.schedules)
        )


@dataclass(frozen=True)
class RegisterDeployment:
    """Register a deployment.

    Attributes:
        spec: the deployment as it should be.
        reason: what was different.
        is_paused: whether its schedule stays paused.
        replaces: the deployment to delete first; None updates.
    """

    spec: DeploymentSpec
    reason: str
    is_paused: bool = False
    replaces: UUID | None = None


@dataclass(frozen=True)
class RemoveSchedules:
    """Remove the schedules of a deployment whose pipeline is no longer scheduled."""

    deployment: ExistingDeployment


Change = RegisterDeployment | RemoveSchedules


def plan_changes(
    specs: Iterable[DeploymentSpec],
    existing: Mapping[str, ExistingDeployment],
    others: Sequence[ExistingDeployment] = (),
    paused: Collection[str] = (),
) -> tuple[Change, ...]:
    """Return what to change; nothing when everything is as it should be.

    Args:
        specs: the deployments that should exist.
        existing: the deployments with the name and the flow of a spec.
        others: this home's other deployments.
        paused: names of deployments that were paused when last seen, in case they are gone.
    """
    changes: list[Change] = []
    for spec in specs:
        found = existing.get(spec.name)
        if found is None:
            changes.append(RegisterDeployment(spec, "it was missing", spec.name in paused))
        elif found.foreign:
            reason = f"it had foreign {', '.join(found.foreign)}"
            changes.append(RegisterDeployment(spec, reason, found.is_paused, found.id))
        elif different := _find_differences(spec, found):
            reason = f"it had another {', '.join(different)}"
            changes.append(RegisterDeployment(spec, reason, found.is_paused))
    changes += [RemoveSchedules(other) for other in others if other.schedules]
    return tuple(changes)


def _find_differences(spec: DeploymentSpec, existing: ExistingDeployment) -> list[str]:
    """Return the names of the fields that are not as declared."""
    crons = [(spec.cron, spec.timezone)] if spec.cron else []
    pairs = {
        "entrypoint": (spec.entrypoint, existing.entrypoint),
        "schedule": (crons, [(each.cron, each.timezone) for each in existing.schedules]),
        "parameters": (dict(spec.parameters), dict(existing.parameters)),
        "tags": (tuple(sorted(spec.tags)), existing.tags),
        # Without a description Prefect takes the flow's.
        "description": (spec.description or existing.description, existing.description),
        "limit": (spec.limit, existing.limit),
        "collision strategy": (spec.collision_strategy, existing.collision_strategy),
    }
    return [name for name, (ours, theirs) in pairs.items() if ours != theirs]
