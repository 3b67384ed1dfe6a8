"""Make one Triton server serve a version of a model, or unload the model."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from millrace.models.common.errors import MillraceError, TransientError, WorkError
from millrace.serving.release.actions import Switch, Unload
from millrace.serving.triton.client import TritonClient
from millrace.serving.triton.model_config import loaded_anew, specific
from millrace.serving.triton.repository import Repository
from millrace.serving.triton.server_index import live_version, ready_versions
from millrace.serving.triton.version_config import config_of, one_config_for

UNLOAD_SECONDS = 60.0
POLL_SECONDS = 0.02


def load(action: Switch, repository: Repository, client: TritonClient) -> None:
    """Write the model's configuration, load it by gRPC, and check that the version answers.

    Raises:
        WorkError: Triton refused the version. The old configuration is restored, and the versions
            that were loaded still serve.
    """
    model, version = action.model, action.version
    artifact = repository.artifact(model, version)
    # one config.pbtxt describes all loaded versions, so an older one with another cannot stay
    keep = [
        each for each in action.keep if one_config_for(repository.artifact(model, each), artifact)
    ]
    config = config_of(
        model,
        artifact,
        version_policy=specific([*keep, version]),
        parameters=loaded_anew() if action.force_reload else None,
    )
    with _restore_config_on_failure(repository, model):
        repository.write_config(config, artifact.labels)
        client.load(model)
        _require_answer(action, client)


def unload(action: Unload, client: TritonClient) -> None:
    """Unload a model, and wait until it no longer answers.

    Raises:
        TransientError: it is still loaded after a minute.
    """
    client.unload(action.model)
    deadline = time.monotonic() + UNLOAD_SECONDS
    while ready_versions(client.index(), action.model):
        if time.monotonic() > deadline:
            raise TransientError(
                f"Triton still serves {action.model} {UNLOAD_SECONDS:g} s after unload",
                hint="requests in flight keep it; release again later",
            )
        time.sleep(POLL_SECONDS)


@contextmanager
def _restore_config_on_failure(repository: Repository, model: str) -> Iterator[None]:
    saved = repository.saved_config(model)
    try:
        yield
    except MillraceError:
        repository.restore(model, saved)
        raise


def _require_answer(action: Switch, client: TritonClient) -> None:
    index = client.index()
    live = live_version(index, action.model)
    if live == action.version:
        return
    reasons = [
        f"{entry.state}: {entry.reason}"
        for entry in index
        if entry.name == action.model and entry.version == action.version
    ]
    raise WorkError(
        f"version {action.version} of {action.model} was loaded but does not answer",
        seen=", ".join(reasons) or "it is not in Triton's index",
        valid="READY, and the highest version that is",
        hint=f"version {live} answers now; see Triton's log",
    )
