"""The pipeline files to schedule, in their present state.

While `up` runs, files change. A file that became invalid keeps the schedule that it had when it was
last valid; a file that is gone has none. Both are reported with the reason.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from millrace.flows.settings import absolute
from millrace.models.common.errors import InputError
from millrace.models.config.batch_spec import ScheduleSpec
from millrace.models.config.pipeline_file import load_pipeline


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
        reason: why the file is not valid; empty if the file is valid or gone.
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
    """Read a file; `version` (inode, times and size) is part of the cache's key.

    The result is cached, because files are checked every few seconds.
    """
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
    """Return the pipelines to schedule, and the faults to report.

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
            effect = "it has no schedule" if pipeline is None else "its last valid schedule applies"
            faults.append(ScheduleFault(each.file, f"{each.reason}; {effect}"))
        elif pipeline is None:
            faults.append(ScheduleFault(each.file, "there is no such file; nothing is scheduled"))
        if pipeline is None:
            continue
        first = pipelines.setdefault(pipeline.name, pipeline)
        if first is not pipeline:
            why = f"{first.file} has the name {pipeline.name!r} as well; this file is not scheduled"
            faults.append(ScheduleFault(each.file, why))
    return tuple(pipelines.values()), tuple(faults)


def _matching_files(pattern: str) -> list[Path]:
    """Return the files that an absolute path or glob matches, in order."""
    path = Path(pattern)
    matches = sorted(Path(path.anchor).glob(str(path.relative_to(path.anchor))))
    return [match for match in matches if match.is_file()]
