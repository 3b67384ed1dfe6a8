"""Runs the tasks of an ingestion on a Ray cluster; only their small results come back.

A task whose node dies runs again on another node. Its first attempt leaves at most files in the
staging folder that nothing names, and that go with the folder.
"""

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from millrace.models.common.errors import InputError, MillraceError, TransientError
from millrace.models.common.installation import Installation
from millrace.models.data.part_tasks import LocalTasks, Task
from millrace.models.data.read_source import Progress, ReadPart
from millrace.models.ray.cluster import RaySession

T = TypeVar("T")

RETRIES = 5
"""How often a task runs again because its node or its process died."""
STOP = "stopped"
"""The file in the staging folder at which tasks that have not ended stop."""
STOP_SECONDS = 10
"""How long tasks that are stopped may take to end."""
THREADS = 1
"""Threads of a task beside the one that reads; Ray runs as many tasks as a node has CPUs."""


@dataclass(frozen=True)
class ClusterTasks:
    """Runs tasks on the cluster of an installation.

    Attributes:
        installation: the installation.
        session: the connection to its cluster, which the first tasks make.
    """

    installation: Installation
    session: RaySession

    def __call__(self, tasks: Sequence[Task[T]], on_rows: Progress) -> list[T]:
        """Run tasks on all nodes, and return their results in order.

        A single task runs in this process, and so do all where the cluster has no node but this
        one, whose cores threads use as well.

        Args:
            tasks: the tasks.
            on_rows: called after each task with the number of rows that it read.

        Raises:
            InputError: a node does not see the source, the staging folder or the tables; or the
                error of a task.
            TransientError: the cluster cannot be reached, or a task's nodes died too often.
        """
        if len(tasks) < 2 or not self._has_other_nodes():
            return LocalTasks.within(self.installation.ingest_memory)(tasks, on_rows)
        first = tasks[0]
        with _proof_in(self.installation) as proof:
            require_seen([first.folder, *proof, *first.source.local_files()[:1]])
        return _run(tasks, on_rows)

    def _has_other_nodes(self) -> bool:
        self.session.connect()
        this = ray.get_runtime_context().get_node_id()
        return any(node["NodeID"] != this for node in working_nodes())


@contextmanager
def cluster_tasks(installation: Installation) -> Iterator[ClusterTasks]:
    """Run tasks on the cluster of an installation while the block runs."""
    with RaySession(installation.ray_address, processes=0) as session:
        yield ClusterTasks(installation, session)


def _run(tasks: Sequence[Task[T]], on_rows: Progress) -> list[T]:
    run_task: Any = ray.remote(run_ingest_task).options(
        num_cpus=1, max_retries=RETRIES, scheduling_strategy="SPREAD"
    )
    waiting = {run_task.remote(task): number for number, task in enumerate(tasks)}
    results: dict[int, T] = {}
    try:
        while waiting:
            [done], _ = ray.wait(list(waiting), num_returns=1)
            result = ray.get(done)
            results[waiting.pop(done)] = result
            if isinstance(result, ReadPart):
                on_rows(result.part.digest.rows + result.part.quarantined)
    except RayError as error:
        raise _error_of(error, tasks[0].source.spec.source) from error
    finally:
        _stop(tasks[0].folder, list(waiting))
    return [results[number] for number in range(len(tasks))]


def _stop(folder: Path, references: list[Any]) -> None:
    """Stop tasks that have not ended, so that none writes into the staging folder afterwards.

    `ray.cancel` ends this process ("Tried to complete task that was not pending", Ray 2.60) if a
    worker takes a task at the moment when it is cancelled.
    """
    if references:
        with suppress(RayError, OSError):
            (folder / STOP).touch()
            ray.wait(references, num_returns=len(references), timeout=STOP_SECONDS)


class _StoppedError(Exception):
    """The ingestion has ended without this task."""


def run_ingest_task(task: Task[T]) -> T | None:
    """Run a task in a process of Ray; None if the ingestion ended before it."""
    stop = task.folder / STOP

    def look(_: int) -> None:
        if stop.exists():
            raise _StoppedError

    try:
        look(0)
        return task.run(look, THREADS)
    except _StoppedError:
        return None


def _error_of(error: RayError, source: str) -> BaseException:
    """Return the error of a task as the task raised it."""
    if isinstance(error, RayTaskError):
        cause = error.cause
        return cause if isinstance(cause, MillraceError) else error
    return TransientError(
        f"{source} could not be read on the Ray cluster",
        seen=str(error).partition("\n")[0],
        valid=f"nodes that live until their tasks end; a task is tried {RETRIES + 1} times",
        hint="check the nodes and their memory, and run again; nothing was published",
    )


@contextmanager
def _proof_in(installation: Installation) -> Iterator[list[Path]]:
    """Create a folder among tables that are outside of the home, which every node must see."""
    tables = Path(installation.tables_uri)
    if "://" in installation.tables_uri or tables.is_relative_to(installation.home):
        yield []
        return
    tables.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=tables, prefix="_seen-") as proof:
        yield [Path(proof)]


def working_nodes() -> list[dict[str, Any]]:
    """Return the nodes of the connected cluster that may run a task."""
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    return [node for node in nodes if node["Alive"] and node["Resources"].get("CPU")]


def require_seen(paths: Sequence[Path]) -> None:
    """Check that every node of the cluster that may run a task sees files and folders.

    Args:
        paths: files, which must have the same size on every node, and folders. The folders' names
            are random, so that another folder at the same path is found out.

    Raises:
        InputError: a node does not see one of them.
    """
    expected = [_look_at(path) for path in paths]
    look: Any = ray.remote(look_at_paths)
    asked = {}
    for node in working_nodes():
        only_there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        chosen = look.options(num_cpus=0, scheduling_strategy=only_there)
        asked[chosen.remote(paths)] = node["NodeManagerAddress"]
    for reference, address in asked.items():
        try:
            seen = ray.get(reference)
        except RayTaskError:
            raise
        except RayError:  # the node has died meanwhile, so it reads nothing
            continue
        for path, here, there in zip(paths, expected, seen, strict=True):
            if here != there:
                raise _unseen_error(path, address, there)


def look_at_paths(paths: Sequence[Path]) -> list[Any]:
    """Return what there is at each path on this node."""
    return [_look_at(path) for path in paths]


def _look_at(path: Path) -> str:
    try:
        return f"a file of {path.stat().st_size} bytes" if path.is_file() else _kind_of(path)
    except OSError as error:
        return f"nothing that can be read ({os.strerror(error.errno or 0)})"


def _kind_of(path: Path) -> str:
    return "a folder" if path.is_dir() else "nothing"


def _unseen_error(path: Path, address: str, there: str) -> InputError:
    return InputError(
        f"a node of the Ray cluster does not see {path} of this machine",
        seen=f"on the node {address} there is {there} at this path",
        valid="a home, tables and a source that every node sees at the same path",
        hint="mount the folder on all nodes, or use s3://… for source and tables; or unset "
        "RAY_ADDRESS to read the source on this machine",
    )
