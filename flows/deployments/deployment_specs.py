"""Which deployments should exist: those of `infra/prefect.yaml`, once for each pipeline file.

Prefect is not imported here, so `millrace up` can refuse a bad file before it starts anything.

While `up` runs, files change. A file that became invalid keeps the schedule that it had when it was
last valid; a file that is gone has none. Both are reported with the reason.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from millrace.flows.settings import absolute
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
        parameters: of every run.
        cron: when to run; None for only on request.
        timezone: of `cron`.
        limit: runs at a time.
        collision_strategy: `ENQUEUE` or `CANCEL_NEW`: what happens to a run beyond the limit.
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
class ScheduledPipeline:
    """The parts of a pipeline file that its schedule needs."""

    name: str
    file: Path
    schedule: ScheduleSpec


@dataclass(frozen=True)
class PipelineFile:
    """One file in its present state.

    Attributes:
        file: its path, or a pattern that matches no file.
        pipeline: its content; None if the file is gone or not valid.
        reason: why it is not valid; empty for one that is gone.
    """

    file: str
    pipeline: ScheduledPipeline | None = None
    reason: str = ""


@dataclass(frozen=True)
class ScheduleFault:
    """Why a file's present content is not scheduled.

    Attributes:
        file: the file.
        reason: what is wrong with it, and what is scheduled instead.
    """

    file: str
    reason: str


def plan_deployments(
    pipeline_files: tuple[Path, ...], prefect_file: Path
) -> tuple[DeploymentSpec, ...]:
    """Return the deployments of these pipeline files, as `prefect_file` declares them.

    Raises:
        InputError: a file cannot be read, or two pipelines have one name.
    """
    pipelines = tuple(read_pipeline(file) for file in pipeline_files)
    names = [pipeline.name for pipeline in pipelines]
    for pipeline in pipelines:
        if names.count(pipeline.name) > 1:
            raise InputError(
                f"two pipeline files have the name {pipeline.name!r}",
                seen=", ".join(str(each.file) for each in pipelines if each.name == pipeline.name),
                valid="a name of its own for each pipeline of MILLRACE_PIPELINES",
            )
    return build_specs(pipelines, prefect_file)


def build_specs(
    pipelines: tuple[ScheduledPipeline, ...], prefect_file: Path
) -> tuple[DeploymentSpec, ...]:
    """Return the deployments of these pipelines, as `prefect_file` declares them.

    A deployment with the parameter `pipeline_file` is repeated for each pipeline, at its own time.

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
        raise InputError(f"{file} is no mapping", seen=type(raw).__name__, valid="key: value lines")
    return raw


def read_pipeline(file: Path) -> ScheduledPipeline:
    """Read the name and the schedule of a pipeline file that `millrace check` accepts.

    Raises:
        InputError: the file cannot be read, or is not valid.
    """
    pipeline = load_pipeline(file)
    return ScheduledPipeline(pipeline.name, file, pipeline.schedule)


def read_pipeline_files(patterns: Iterable[str]) -> tuple[PipelineFile, ...]:
    """Read every file that the patterns match, each once and in order."""
    found: dict[str, PipelineFile] = {}
    for pattern in patterns:
        path = str(absolute(Path(pattern)))
        files = _matching_files(path)
        for file in files:
            found.setdefault(str(file), _read_file(file))
        if not files:
            found.setdefault(path, PipelineFile(path))
    return tuple(found.values())


def _read_file(file: Path) -> PipelineFile:
    try:
        stat = file.stat()
    except OSError:
        return PipelineFile(str(file))
    return _read_version(file, (stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size))


@lru_cache(maxsize=1024)
def _read_version(file: Path, version: tuple[int, ...]) -> PipelineFile:
    """Read a file once for each version of it: the files are checked every few seconds."""
    del version
    try:
        return PipelineFile(str(file), read_pipeline(file))
    except InputError as error:
        parts = (error.what, error.seen, error.hint)
        reason = ": ".join(" ".join(str(part).split()) for part in parts if part)
        return PipelineFile(str(file), None, reason)


def select_pipelines(
    files: Sequence[PipelineFile], last_valid: Mapping[str, ScheduledPipeline]
) -> tuple[tuple[ScheduledPipeline, ...], tuple[ScheduleFault, ...]]:
    """Select the pipelines to schedule, and the faults to report.

    Args:
        files: the files in their present state.
        last_valid: the content of each file when it was last valid.
    """
    pipelines: dict[str, ScheduledPipeline] = {}
    faults: list[ScheduleFault] = []
    for each in files:
        pipeline = each.pipeline
        if pipeline is None and each.reason:
            pipeline = last_valid.get(each.file)
            held = "it has no schedule" if pipeline is None else "its last valid schedule holds"
            faults.append(ScheduleFault(each.file, f"{each.reason}; {held}"))
        elif pipeline is None:
            faults.append(ScheduleFault(each.file, "there is no such file; it is not scheduled"))
        if pipeline is None:
            continue
        first = pipelines.setdefault(pipeline.name, pipeline)
        if first is not pipeline:
            why = f"{first.file} has the name {pipeline.name!r} as well; this one is not scheduled"
            faults.append(ScheduleFault(each.file, why))
    return tuple(pipelines.values()), tuple(faults)


def _matching_files(pattern: str) -> list[Path]:
    """Return the files that an absolute path or glob matches, in order."""
    path = Path(pattern)
    matches = sorted(Path(path.anchor).glob(str(path.relative_to(path.anchor))))
    return [match for match in matches if match.is_file()]
