"""Which pipelines are to be scheduled: the files as they are now, and what was read of them before.

A file that became invalid keeps the schedule that it had when it was last valid; one that is gone
has none. Both are told with the reason.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from millrace.flows.deployments.deployment_specs import Scheduled, scheduled
from millrace.flows.settings import absolute
from millrace.models.common.errors import InputError


@dataclass(frozen=True)
class Seen:
    """One file as it is now.

    Attributes:
        file: its path, or the pattern that matches none.
        pipeline: what it says; None if it is gone or not valid.
        reason: why there is no pipeline; empty for one that is gone.
    """

    file: str
    pipeline: Scheduled | None = None
    reason: str = ""


@dataclass(frozen=True)
class Fault:
    """Why a file is not scheduled as it stands.

    Attributes:
        file: the file.
        reason: what is wrong with it, and what holds meanwhile.
    """

    file: str
    reason: str


def look(patterns: Iterable[str]) -> tuple[Seen, ...]:
    """Read every file that the patterns name, each once and in order."""
    found: dict[str, Seen] = {}
    for pattern in patterns:
        path = absolute(Path(pattern))
        matches = sorted(Path(path.anchor).glob(str(path.relative_to(path.anchor))))
        files = [match for match in matches if match.is_file()]
        for file in files:
            found.setdefault(str(file), _read(file))
        if not files:
            found.setdefault(str(path), Seen(str(path)))
    return tuple(found.values())


def _read(file: Path) -> Seen:
    try:
        stat = file.stat()
    except OSError:
        return Seen(str(file))
    return _read_once(file, (stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size))


@lru_cache(maxsize=1024)
def _read_once(file: Path, version: tuple[int, ...]) -> Seen:
    """Read a file as it was at a version of it: this is asked for every few seconds."""
    del version
    try:
        return Seen(str(file), scheduled(file))
    except InputError as error:
        parts = (error.what, error.seen, error.hint)
        reason = ": ".join(" ".join(str(part).split()) for part in parts if part)
        return Seen(str(file), None, reason)


def to_schedule(
    seen: Sequence[Seen], kept: Mapping[str, Scheduled]
) -> tuple[tuple[Scheduled, ...], tuple[Fault, ...]]:
    """Decide which pipelines to schedule, and what to tell.

    Args:
        seen: the files as they are.
        kept: what each file said when it was last valid.
    """
    pipelines: dict[str, Scheduled] = {}
    faults: list[Fault] = []
    for each in seen:
        pipeline = each.pipeline
        if pipeline is None and not each.reason:
            faults.append(Fault(each.file, "there is no such file; it is not scheduled"))
            continue
        if pipeline is None:
            pipeline = kept.get(each.file)
            held = "it has no schedule" if pipeline is None else "its last valid schedule holds"
            faults.append(Fault(each.file, f"{each.reason}; {held}"))
        if pipeline is None:
            continue
        first = pipelines.setdefault(pipeline.name, pipeline)
        if first is not pipeline:
            why = f"{first.file} has the name {pipeline.name!r} as well; this one is not scheduled"
            faults.append(Fault(each.file, why))
    return tuple(pipelines.values()), tuple(faults)
