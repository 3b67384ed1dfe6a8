"""The files in the home's folder `run` by which the replicas' owner and its helpers agree.

| file | who writes it | what it says |
|---|---|---|
| `replicas.bounds.json` | `millrace up` | how many replicas the pipeline files allow |
| `replicas.wanted.json` | the scaler | how many the load needs, and why |
| `replicas.json` | the supervisor, which owns the replicas | what runs |
| `replica-N.ready` | the joiner | the process of replica N that serves all models |

Only the supervisor starts and stops replicas and writes the guard's lists. It takes back what
anybody else changes there.
"""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter

from millrace.models.common.errors import WorkError
from millrace.models.common.installation import Endpoint, Installation
from millrace.models.common.private_files import replace_private
from millrace.models.config.replicas_spec import ReplicasSpec
from millrace.serving.guard.envoy_replicas import replica_endpoint

Record = TypeVar("Record")


@dataclass(frozen=True)
class Wanted:
    """How many replicas should run.

    Attributes:
        replicas: their number.
        reason: why.
        needed: the number that a dry run would run; None without one.
    """

    replicas: int
    reason: str
    needed: int | None = None


@dataclass(frozen=True)
class RunningReplica:
    """One replica, as its owner sees it.

    Attributes:
        number: its number, from 1.
        pid: its process; None if none runs now.
        state: `stopped`, `loading`, `serving`, `draining` or `stopping`.
    """

    number: int
    pid: int | None
    state: str


@dataclass(frozen=True)
class Fleet:
    """The replicas of a home, as their owner last wrote them.

    Attributes:
        grpc_port: the guard's gRPC port, which tells to which server they belong.
        wanted: how many should run.
        replicas: those that run or should.
        fault: why one of them cannot start; empty if all can.
    """

    grpc_port: int
    wanted: int
    replicas: tuple[RunningReplica, ...]
    fault: str = ""


_BOUNDS, _WANTED, _FLEET = TypeAdapter(ReplicasSpec), TypeAdapter(Wanted), TypeAdapter(Fleet)


def read_bounds(run: Path) -> ReplicasSpec:
    """Return how many replicas are allowed; one if nobody has written it."""
    return _read(run / "replicas.bounds.json", _BOUNDS) or ReplicasSpec()


def write_bounds(run: Path, bounds: ReplicasSpec) -> None:
    """Write how many replicas are allowed, and forget what an earlier `up` wanted and ran."""
    forget_fleet(run)
    _write(run / "replicas.bounds.json", _BOUNDS, bounds)


def read_wanted(run: Path) -> Wanted | None:
    """Return how many replicas the scaler wants; None if it has not said, or nobody can read it."""
    return _read(run / "replicas.wanted.json", _WANTED)


def write_wanted(run: Path, wanted: Wanted) -> None:
    """Write how many replicas should run, also over what cannot be read.

    Raises:
        OSError: the file cannot be written.
        WorkError: a folder is in its place.
    """
    _write(run / "replicas.wanted.json", _WANTED, wanted)


def read_fleet(run: Path) -> Fleet | None:
    """Return the replicas that run; None if no owner of several runs."""
    return _read(run / "replicas.json", _FLEET)


def write_fleet(run: Path, fleet: Fleet) -> None:
    """Write the replicas that run, also over what cannot be read.

    Raises:
        OSError: the file cannot be written.
        WorkError: a folder is in its place.
    """
    _write(run / "replicas.json", _FLEET, fleet)


def forget_bounds(run: Path) -> None:
    """Return to one Triton, as without a supervisor of several."""
    forget_fleet(run)
    _remove(run / "replicas.bounds.json")


def forget_fleet(run: Path) -> None:
    """Remove what is only true while the owner runs."""
    for file in (run / "replicas.json", run / "replicas.wanted.json", *run.glob("replica-*.ready")):
        _remove(file)


def fault_of_files(run: Path) -> str:
    """Return what a person must do before the files can be written; empty if nothing."""
    names = ("replicas.bounds.json", "replicas.wanted.json", "replicas.json")
    return next((_is_folder(run / name) for name in names if (run / name).is_dir()), "")


def read_ready(run: Path, number: int) -> int | None:
    """Return the process of a replica that was found to serve all models; None if none was."""
    with suppress(OSError, ValueError):
        return int((run / f"replica-{number}.ready").read_text())
    return None


def mark_ready(run: Path, number: int, pid: int) -> None:
    """Note that a replica's process serves all models."""
    replace_private(run / f"replica-{number}.ready", str(pid))


def unmark_ready(run: Path, number: int) -> None:
    """Note that a replica must be found ready anew, before it gets requests."""
    _remove(run / f"replica-{number}.ready")


def servers_of(installation: Installation) -> tuple[Endpoint, ...]:
    """Return every server that a release must tell now: the replicas, or the configured servers.

    A replica that drains is left out, and so is one that cannot start. Only a Triton of this home
    has a token.
    """
    guard = installation.triton[0]
    fleet = read_fleet(installation.run) if guard.token else None
    if fleet is None or fleet.grpc_port != guard.grpc_port:
        return installation.triton
    told = ("loading", "serving") if fleet.fault else ("stopped", "loading", "serving")
    numbers = [each.number for each in fleet.replicas if each.state in told]
    return tuple(replica_endpoint(guard, number) for number in numbers or (1,))


def _read(path: Path, kind: TypeAdapter[Record]) -> Record | None:
    try:
        return kind.validate_json(path.read_bytes())
    except (OSError, ValueError):
        return None


def _write(path: Path, kind: TypeAdapter[Record], record: Record) -> None:
    new, old = kind.dump_json(record, indent=1), None
    if path.is_dir():
        raise WorkError(_is_folder(path))
    with suppress(OSError):
        old = path.read_bytes()
    if new != old:
        replace_private(path, new.decode())


def _remove(path: Path) -> None:
    """Remove a file; a folder in its place stays, and `fault_of_files` names it."""
    with suppress(IsADirectoryError):
        path.unlink(missing_ok=True)


def _is_folder(path: Path) -> str:
    return f"{path} is a folder, but Millrace keeps a file there; remove the folder"
