"""A model's files on nodes that do not have them: they come through Ray's object store.

The driver alone talks to MLflow, so actors need neither it nor its credentials. A node keeps what
came in a folder among its temporary files, where the next job of the version finds it.
"""

import fcntl
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from millrace.models.common.digest import digest_of, digest_of_model
from millrace.models.common.errors import WorkError
from millrace.serving.batch.job import Job

CHUNK_BYTES = 64 * 2**20
KEPT_SECONDS = 7 * 24 * 3600
"""After which a model that nobody used is removed, when another one comes."""
SHORT = 16
AnyJob = TypeVar("AnyJob", bound=Job)


@dataclass(frozen=True)
class Carried:
    """A model's files on their way to actors.

    Attributes:
        digest: of the files.
        chunks: by name, references to the bytes in Ray's object store, in order.
    """

    digest: str
    chunks: Mapping[str, Sequence[Any]]


def carried(job: Job) -> Carried:
    """Put the files of a job's model into Ray's object store."""
    files = {file.name: file for file in job.files}
    found = digest_of_model({name: digest_of(file) for name, file in files.items()})
    return Carried(found, {name: [*_chunks(file)] for name, file in files.items()})


def at_hand(job: AnyJob, model: Carried | None, cache: Path | None = None) -> AnyJob:
    """Return a job whose model's files are on this node, fetched where they are not.

    Args:
        job: whose files are named as they are on the driver's node.
        model: the files; None where every node has them.
        cache: folder of this node for models; one in its temporary files when None.

    Raises:
        WorkError: other bytes came than were sent.
    """
    if model is None or _is_there(job.folder, model):
        return job
    return job.moved(_fetched(model, cache))


def everywhere(job: AnyJob, model: Carried, resource: str, cache: Path | None = None) -> AnyJob:
    """Return a job whose model's files are in one folder, on every node that has a resource.

    For who opens them without us: it cannot fetch them where it starts.

    Args:
        job: as for `at_hand`.
        model: the files.
        resource: Ray's word for it.
        cache: as for `at_hand`.

    Raises:
        WorkError: other bytes came than were sent, or the nodes keep models in different folders.
    """
    if all(_on_nodes(resource, _is_there, job.folder, model)):
        return job
    folders = {str(folder) for folder in _on_nodes(resource, _fetched, model, cache)}
    if len(folders) != 1:
        raise WorkError(
            "the nodes keep models in different folders",
            seen=", ".join(sorted(folders)) or f"no node has a {resource}",
            valid="one folder",
            hint="start Ray on all nodes as the same user, with the same TMPDIR",
        )
    return job.moved(Path(folders.pop()))


def _on_nodes(resource: str, function: Callable[..., Any], *given: Any) -> list[Any]:
    """Return what a function returns on each node that has a resource."""
    task = ray.remote(function)
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    there = [node["NodeID"] for node in nodes if node["Alive"] and node["Resources"].get(resource)]
    placed = [NodeAffinitySchedulingStrategy(node, soft=False) for node in there]
    found: list[Any] = ray.get(
        [task.options(num_cpus=0, scheduling_strategy=at).remote(*given) for at in placed]
    )
    return found


def _is_there(folder: Path, model: Carried) -> bool:
    return all((folder / name).is_file() for name in model.chunks)


def _fetched(model: Carried, cache: Path | None) -> Path:
    folder = cache or _cache()
    with _alone(folder / f"{model.digest[:SHORT]}.lock"):
        return _kept(model, folder)


def _kept(model: Carried, cache: Path) -> Path:
    """Return the folder of a model, fetched if it is not there, or not whole."""
    kept = cache / model.digest[:SHORT]
    if kept.is_dir() and _digest(kept, model) == model.digest:
        os.utime(kept)
        return kept
    shutil.rmtree(kept, ignore_errors=True)
    _remove_old(cache)
    with tempfile.TemporaryDirectory(dir=cache) as staging:
        drawn = Path(staging) / "model"
        drawn.mkdir()
        for name, chunks in model.chunks.items():
            with (drawn / name).open("wb") as file:
                for chunk in chunks:
                    file.write(ray.get(chunk))
        if (found := _digest(drawn, model)) != model.digest:
            raise WorkError(
                "the model's files came to a node with other bytes",
                seen=f"sha256 {found}",
                valid=f"sha256 {model.digest}",
                hint="run it again",
            )
        drawn.rename(kept)
    return kept


def _chunks(file: Path) -> Iterator[Any]:
    with file.open("rb") as opened:
        while chunk := opened.read(CHUNK_BYTES):
            yield ray.put(chunk)


def _digest(folder: Path, model: Carried) -> str:
    files = {name: folder / name for name in model.chunks}
    if not all(file.is_file() for file in files.values()):
        return ""
    return digest_of_model({name: digest_of(file) for name, file in files.items()})


def _cache() -> Path:
    """Return this user's folder for models on this node, that nobody else can write."""
    folder = Path(tempfile.gettempdir()) / f"millrace-models-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise WorkError(
            "the folder for models on this node is not ours alone",
            seen=f"{folder}, {stat.filemode(found.st_mode)} of user {found.st_uid}",
            valid="a folder of this user's with mode 0700",
            hint="remove it there",
        )
    return folder


def _remove_old(cache: Path) -> None:
    """Remove the models that nobody has used for a while; an opened one is in memory."""
    for folder in cache.iterdir():
        if folder.is_dir() and time.time() - folder.stat().st_mtime > KEPT_SECONDS:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Let one actor of this node at a time fetch a model."""
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
