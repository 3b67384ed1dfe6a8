"""Load a version of a model on one Triton server, or unload a model."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from millrace.models.common.errors import MillraceError, TransientError, WorkError
from millrace.serving.triton.client import TritonClient
from millrace.serving.triton.model_config import loaded_anew, specific
from millrace.serving.triton.repository import Repository
from millrace.serving.triton.server_index import live_version, ready_versions
from millrace.serving.triton.version_config import config_of, one_config_for

UNLOAD_SECONDS = 60.0
POLL_SECONDS = 0.02


def load_version(
    model: str,
    version: int,
    repository: Repository,
    client: TritonClient,
    *,
    keep: Sequence[int] = (),
    force_reload: bool = False,
) -> None:
    """Write the model's configuration, load it by gRPC, and check that the version answers.

    Args:
        model: the model.
        version: the version that is to answer requests.
        repository: the model repository, with the staged version.
        client: the server.
        keep: versions to keep loaded beside the new one; all must have lower numbers.
        force_reload: whether to load the version even if the server's index lists it as loaded.

    Raises:
        WorkError: Triton refused the version. The old configuration is restored, and the versions
            that were loaded before still serve.
    """
    artifact = repository.artifact(model, version)
    # One config.pbtxt describes all loaded versions, so a version that needs another file must go.
    kept = [each for each in keep if one_config_for(repository.artifact(model, each), artifact)]
    config = config_of(
        model,
        artifact,
        version_policy=specific([*kept, version]),
        parameters=loaded_anew() if force_reload else None,
    )
    with restore_config_on_failure(repository, model):
        repository.write_config(config, artifact.labels)
        client.load(model)
        _require_answer(model, version, client)


def unload_model(model: str, client: TritonClient) -> None:
    """Unload a model, and wait until it no longer answers.

    Raises:
        TransientError: the model is still loaded after a minute.
    """
    client.unload(model)
    deadline = time.monotonic() + UNLOAD_SECONDS
    while ready_versions(client.index(), model):
        if time.monotonic() > deadline:
            raise TransientError(
                f"Triton still serves {model} {UNLOAD_SECONDS:g} s after it was unloaded",
                hint="requests in flight may keep it loaded; release again later",
            )
        time.sleep(POLL_SECONDS)


@contextmanager
def restore_config_on_failure(repository: Repository, model: str) -> Iterator[None]:
    """Restore the configuration of a model if the block fails."""
    saved = repository.saved_config(model)
    try:
        yield
    except MillraceError:
        repository.restore(model, saved)
        raise


def _require_answer(model: str, version: int, client: TritonClient) -> None:
    index = client.index()
    live = live_version(index, model)
    if live == version:
        return
    reasons = [
        f"{entry.state}: {entry.reason}"
        for entry in index
        if entry.name == model and entry.version == version
    ]
    raise WorkError(
        f"version {version} of {model} was loaded but does not answer",
        seen=", ".join(reasons) or "this version is not in Triton's index",
        valid="the state READY, and the highest version number in that state",
        hint=f"the version that answers now is {live}; read Triton's log",
    )
