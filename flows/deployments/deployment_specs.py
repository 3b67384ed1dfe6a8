"""Plans which deployments should exist and what to change in Prefect; has no side effects.

The deployments are those of `infra/prefect.yaml`. A deployment with the parameter `pipeline_file`
is repeated for each pipeline file. Prefect is not imported here, so `millrace up` can refuse a bad
file before it starts anything.

A deployment is registered as its spec says. A pause that a user set stays. Any other difference is
reverted. A deployment that would run foreign code is deleted first, because Prefect's update keeps
the fields that the update does not name.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import UUID

import yaml

from millrace.flows.deployments.scheduled_files import ScheduledPipeline, read_pipeline
from millrace.models.common.bounded_files import YAML_BYTES, bounded_text, bounded_yaml
from millrace.models.common.errors import InputError


@dataclass(frozen=True)
class DeploymentSpec:
    """One deployment of a flow.

    Attributes:
        name: `release`, or `train-NAME` and `score-NAME` for the pipeline NAME.
        entrypoint: the flow's dotted path, such as `millrace.flows.train_model.train_model`.
        description: what a run does.
        tags: the tags for the UI's filters.
        parameters: the parameters of every run.
        cron: when to run; None: only on request.
        timezone: the time zone of `cron`.
        limit: the maximum number of concurrent runs.
        collision_strategy: what happens to a run beyond the limit, `ENQUEUE` or `CANCEL_NEW`.
    """

    name: str
    entrypoint: str
    description: str = ""
    tags: tuple[str, ...] = ()
    parameters: Mapping[str, Any] = field(default_factory=dict)
    cron: str | None = None
    timezone: str = "UTC"
    limit: int = 1
    collision_strategy: str = "ENQUEUE"


def plan_deployments(
    pipeline_files: tuple[Path, ...], prefect_file: Path
) -> tuple[DeploymentSpec, ...]:
    """Return the deployments that `prefect_file` declares, for these pipeline files.

    Raises:
        InputError: a file cannot be read, or two pipelines have the same name.
    """
    pipelines = tuple(read_pipeline(file) for file in pipeline_files)
    names = [pipeline.name for pipeline in pipelines]
    for pipeline in pipelines:
        if names.count(pipeline.name) > 1:
            raise InputError(
                f"two pipeline files have the name {pipeline.name!r}",
                seen=", ".join(str(each.file) for each in pipelines if each.name == pipeline.name),
                valid="a different name for each pipeline in MILLRACE_PIPELINES",
            )
    return build_specs(pipelines, prefect_file)


def build_specs(
    pipelines: tuple[ScheduledPipeline, ...], prefect_file: Path
) -> tuple[DeploymentSpec, ...]:
    """Return the deployments that `prefect_file` declares, for these pipelines.

    A deployment with the parameter `pipeline_file` is repeated for each pipeline, with that
    pipeline's schedule.

    Raises:
        InputError: the file cannot be read.
    """
    specs: list[DeploymentSpec] = []
    for entry in _read_yaml(prefect_file).get("deployments", []):
        base = _read_declaration(entry)
        if "pipeline_file" not in base.parameters:
            specs.append(base)
            continue
        specs += [
            replace(
                base,
                name=f"{base.name}-{pipeline.name}",
                tags=(*base.tags, pipeline.name),
                parameters={**base.parameters, "pipeline_file": str(pipeline.file)},
                cron=getattr(pipeline.schedule, base.name),
                timezone=pipeline.schedule.timezone,
            )
            for pipeline in pipelines
        ]
    return tuple(specs)


def _read_declaration(entry: Mapping[str, Any]) -> DeploymentSpec:
    schedule: Mapping[str, Any] = next(iter(entry.get("schedules") or []), {})
    concurrency = entry.get("concurrency_limit") or {}
    return DeploymentSpec(
        name=entry["name"],
        entrypoint=entry["entrypoint"],
        description=entry.get("description", ""),
        tags=tuple(entry.get("tags", ())),
        parameters=entry.get("parameters") or {},
        cron=schedule.get("cron"),
        timezone=schedule.get("timezone", "UTC"),
        limit=concurrency.get("limit", 1),
        collision_strategy=concurrency.get("collision_strategy", "ENQUEUE"),
    )


def _read_yaml(file: Path) -> dict[str, Any]:
    try:
        raw = bounded_yaml(bounded_text(file, YAML_BYTES))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise InputError(f"{file} cannot be read", seen=error, valid="a YAML file") from error
    if not isinstance(raw, dict):
        raise InputError(
            f"{file} is not a YAML mapping", seen=type(raw).__name__, valid="key: value lines"
        )
    return raw


@dataclass(frozen=True)
class ExistingSchedule:
    """One schedule of a deployment in Prefect; `cron` is None for other kinds of schedules."""

    id: UUID
    cron: str | None
    timezone: str
    is_active: bool


@dataclass(frozen=True)
class ExistingDeployment:
    """One deployment in Prefect.

    Attributes:
        id: the deployment's id.
        name: the deployment's name.
        entrypoint: the flow that it runs.
        description: the description that the UI shows.
        tags: the tags, sorted.
        parameters: the parameters of every run.
        limit: the maximum number of concurrent runs.
        collision_strategy: what happens to a run beyond the limit.
        has_pause: whether it is paused as a whole.
        schedules: when it runs.
        foreign: fields that are set in Prefect, but never by Millrace, such as `pull_steps`.
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
        """Whether a user has paused the deployment as a whole, or every one of its schedules."""
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
        replaces: the deployment to delete first; None: update the present one.
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
    """Return the changes to make in Prefect; empty if the deployments match the specs.

    Args:
        specs: the deployments that should exist.
        existing: Prefect's deployments with the name and the flow of a spec, by name.
        others: this home's other deployments in Prefect.
        paused: names of deployments that were last seen paused; they are restored as paused.
    """
    changes: list[Change] = []
    for spec in specs:
        found = existing.get(spec.name)
        if found is None:
            changes.append(RegisterDeployment(spec, "it was missing", spec.name in paused))
        elif found.foreign:
            reason = f"it had fields that Millrace never sets: {', '.join(found.foreign)}"
            changes.append(RegisterDeployment(spec, reason, found.is_paused, found.id))
        elif different := _find_differences(spec, found):
            reason = f"it had a different {', '.join(different)}"
            changes.append(RegisterDeployment(spec, reason, found.is_paused))
    changes += [RemoveSchedules(other) for other in others if other.schedules]
    return tuple(changes)


def _find_differences(spec: DeploymentSpec, existing: ExistingDeployment) -> list[str]:
    """Return the names of the fields that differ from the spec."""
    crons = [(spec.cron, spec.timezone)] if spec.cron else []
    pairs = {
        "entrypoint": (spec.entrypoint, existing.entrypoint),
        "schedule": (crons, [(each.cron, each.timezone) for each in existing.schedules]),
        "parameters": (dict(spec.parameters), dict(existing.parameters)),
        "tags": (tuple(sorted(spec.tags)), existing.tags),
        # Without a description Prefect uses the flow's.
        "description": (spec.description or existing.description, existing.description),
        "limit": (spec.limit, existing.limit),
        "collision strategy": (spec.collision_strategy, existing.collision_strategy),
    }
    return [name for name, (ours, theirs) in pairs.items() if ours != theirs]
