"""Copies a model's files to nodes that do not have them, through Ray's object store.

Only the driver talks to MLflow, so actors need neither MLflow nor its credentials. A node caches
the files in a temporary folder, where the next job with the same version finds them.
"""

import fcntl
import os
import platform
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
CACHE_SECONDS = 7 * 24 * 3600
"""A cached model that was not used for this long is deleted when another model is fetched."""
SHORT = 16
AnyJob = TypeVar("AnyJob", bound=Job)


@dataclass(frozen=True)
class ModelFiles:
    """A model's files in Ray's object store.

    Attributes:
        digest: digest of the files.
        chunks: references to the bytes of each file, in order, by file name.
    """

    digest: str
    chunks: Mapping[str, Sequence[Any]]


def put_model_files(job: Job) -> ModelFiles:
    """Put the files of a job's model into Ray's object store."""
    files = {file.name: file for file in job.files}
    digest = digest_of_model({name: digest_of(file) for name, file in files.items()})
    return ModelFiles(digest, {name: [*_put_chunks(file)] for name, file in files.items()})


def with_local_files(job: AnyJob, model: ModelFiles | None, cache: Path | None = None) -> AnyJob:
    """Return the job with the model's files on this node; fetch the files if they are missing.

    Args:
        job: the job, with the paths of the files on the driver's node.
        model: the files; None if every node has them.
        cache: this node's folder for models; None: a folder in the temporary directory.

    Raises:
        WorkError: the fetched files differ from those that were sent.
    """
    if model is None or _has_files(job.folder, model):
        return job
    return job.moved(_fetch(model, cache))


def with_files_on_nodes(
    job: AnyJob, model: ModelFiles, resource: str, cache: Path | None = None
) -> AnyJob:
    """Return the job with the model's files in the same folder on all nodes that have a resource.

    Use this for an engine that opens the files itself and cannot fetch them when it starts.

    Args:
        job: as for `with_local_files`.
        model: the files.
        resource: Ray's name of the resource, such as `GPU`.
        cache: as for `with_local_files`.

    Raises:
        WorkError: the fetched files differ from those that were sent, or the nodes keep models in
            different folders.
    """
    if all(_run_on_nodes(resource, _has_files, job.folder, model)):
        return job
    folders = {str(folder) for folder in _run_on_nodes(resource, _fetch, model, cache)}
    if len(folders) != 1:
        raise WorkError(
            "the nodes of the Ray cluster keep copies of models in different folders",
            seen=", ".join(sorted(folders)) or f"no node has a {resource}",
            valid="the same folder on all nodes",
            hint="start Ray on all nodes as the same user, with the same TMPDIR",
        )
    return job.moved(Path(folders.pop()))


def _run_on_nodes(resource: str, function: Callable[..., Any], *given: Any) -> list[Any]:
    """Return what a function returns on each node that has a resource."""
    task = ray.remote(function)
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    ids = [node["NodeID"] for node in nodes if node["Alive"] and node["Resources"].get(resource)]
    placed = [NodeAffinitySchedulingStrategy(node, soft=False) for node in ids]
    found: list[Any] = ray.get(
        [task.options(num_cpus=0, scheduling_strategy=at).remote(*given) for at in placed]
    )
    return found


def _has_files(folder: Path, model: ModelFiles) -> bool:
    return all((folder / name).is_file() for name in model.chunks)


def _fetch(model: ModelFiles, cache: Path | None) -> Path:
    """Return the folder of a model in the cache; fetch the model if it is missing or damaged."""
    cache = cache or _own_cache()
    folder = cache / model.digest[:SHORT]
    with _lock(cache / f"{model.digest[:SHORT]}.lock"):
        if folder.is_dir() and _digest_in(folder, model) == model.digest:
            os.utime(folder)
            return folder
        shutil.rmtree(folder, ignore_errors=True)
        _remove_unused(cache)
        with tempfile.TemporaryDirectory(dir=cache) as staging:
            fetched = Path(staging) / "model"
            fetched.mkdir()
            for name, chunks in model.chunks.items():
                with (fetched / name).open("wb") as file:
                    for chunk in chunks:
                        file.write(ray.get(chunk))
            if (found := _digest_in(fetched, model)) != model.digest:
                raise WorkError(
                    f"the model's files on the node {platform.node()} "
                    "differ from those that the driver sent",
                    seen=f"sha256 {found}",
                    valid=f"sha256 {model.digest}",
                    hint="run the job again",
                )
            fetched.rename(folder)
    return folder


def _put_chunks(file: Path) -> Iterator[Any]:
    with file.open("rb") as opened:
        while chunk := opened.read(CHUNK_BYTES):
            yield ray.put(chunk)


def _digest_in(folder: Path, model: ModelFiles) -> str:
    """Return the digest of a model's files in a folder; empty if one is missing."""
    if not _has_files(folder, model):
        return ""
    return digest_of_model({name: digest_of(folder / name) for name in model.chunks})


def _own_cache() -> Path:
    """Return this user's folder for models on this node, which only this user can access.

    Raises:
        WorkError: the folder exists and is not private to this user.
    """
    folder = Path(tempfile.gettempdir()) / f"millrace-models-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise WorkError(
            f"the folder for models on the node {platform.node()} is not private to this user",
            seen=f"{folder}, {stat.filemode(found.st_mode)} of user {found.st_uid}",
            valid="a folder of this user with mode 0700",
            hint=f"remove {folder} on that node",
        )
    return folder


def _remove_unused(cache: Path) -> None:
    """Delete models unused for `CACHE_SECONDS`; a model that is loaded stays in memory."""
    for folder in cache.iterdir():
        if folder.is_dir() and time.time() - folder.stat().st_mtime > CACHE_SECONDS:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Let one actor of this node at a time fetch a model."""
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
