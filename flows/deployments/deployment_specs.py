"""Which deployments to serve: `infra/prefect.yaml` once for each pipeline file, as plain values.

Prefect is not imported here, so that `millrace up` can refuse a bad file before it starts anything.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from millrace.models.common.bounded_files import YAML_BYTES, bounded_text, bounded_yaml
from millrace.models.common.errors import InputError
from millrace.models.config.batch_spec import ScheduleSpec
from millrace.models.config.pipeline_file import load_pipeline


@dataclass(frozen=True)
class DeploymentSpec:
    """One deployment of a flow.

    Attributes:
        name: `release`, or `train-NAME` and `score-NAME` for the pipeline NAME.
        entrypoint: dotted, `millrace.flows.train_model.train_model`.
        description: what a run does.
        tags: for the UI's filters.
        parameters: what every run is given.
        cron: when to run, or None for only when asked.
        timezone: of `cron`.
        limit: runs at a time.
        collision_strategy: `ENQUEUE` or `CANCEL_NEW`: what becomes of one run more.
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


@dataclass(frozen=True)
class Scheduled:
    """A pipeline file as far as the schedule goes."""

    name: str
    file: Path
    schedule: ScheduleSpec


def plan(pipeline_files: tuple[Path, ...], prefect_file: Path) -> tuple[DeploymentSpec, ...]:
    """Return the deployments of these pipeline files, as `prefect_file` declares them.

    Raises:
        InputError: a file cannot be read, or two pipelines have one name.
    """
    pipelines = tuple(scheduled(file) for file in pipeline_files)
    names = [pipeline.name for pipeline in pipelines]
    for pipeline in pipelines:
        if names.count(pipeline.name) > 1:
            raise InputError(
                f"two pipeline files have the name {pipeline.name!r}",
                seen=", ".join(str(each.file) for each in pipelines if each.name == pipeline.name),
                valid="a name of its own for each pipeline of MILLRACE_PIPELINES",
            )
    return specs_of(pipelines, prefect_file)


def specs_of(pipelines: tuple[Scheduled, ...], prefect_file: Path) -> tuple[DeploymentSpec, ...]:
    """Return the deployments of these pipelines, as `prefect_file` declares them.

    Raises:
        InputError: the file cannot be read.
    """
    declared = [_declared(entry) for entry in _yaml(prefect_file).get("deployments", [])]
    return tuple(spec for base in declared for spec in _for_pipelines(base, pipelines))


def _for_pipelines(
    base: DeploymentSpec, pipelines: tuple[Scheduled, ...]
) -> tuple[DeploymentSpec, ...]:
    """Repeat a deployment that takes a pipeline file for each pipeline, at its own time."""
    if "pipeline_file" not in base.parameters:
        return (base,)
    return tuple(
        DeploymentSpec(
            name=f"{base.name}-{pipeline.name}",
            entrypoint=base.entrypoint,
            description=base.description,
            tags=(*base.tags, pipeline.name),
            parameters={**base.parameters, "pipeline_file": str(pipeline.file)},
            cron=getattr(pipeline.schedule, base.name),
            timezone=pipeline.schedule.timezone,
            limit=base.limit,
            collision_strategy=base.collision_strategy,
        )
        for pipeline in pipelines
    )


def _declared(entry: Mapping[str, Any]) -> DeploymentSpec:
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


def scheduled(file: Path) -> Scheduled:
    """Read the name and the schedule of a pipeline file that `check` would take.

    Raises:
        InputError: the file cannot be read, or is not valid.
    """
    pipeline = load_pipeline(file)
    return Scheduled(pipeline.name, file, pipeline.schedule)


def _yaml(file: Path) -> dict[str, Any]:
    try:
        raw = bounded_yaml(bounded_text(file, YAML_BYTES))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise InputError(f"{file} cannot be read", seen=error, valid="a YAML file") from error
    if not isinstance(raw, dict):
        raise InputError(f"{file} is no mapping", seen=type(raw).__name__, valid="key: value lines")
    return raw
