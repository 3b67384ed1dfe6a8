"""Make every Triton server serve the champions: the one place that carries a plan out.

`serving.plan` decides. Triton passes no change on to another replica, so each one is told.
"""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from models.errors import MillraceError, TransientError, WorkError
from models.places import Endpoint
from serving.client import TritonClient
from serving.config import Device, model_config, specific
from serving.index import live_version, ready_versions
from serving.plan import Load, Stage, Unload, plan
from serving.repository import Artifact, Repository

__all__ = ["Fetch", "Outcome", "checked", "load", "plan", "reconcile", "stage", "unload"]

UNLOAD_SECONDS = 60.0
POLL_SECONDS = 0.02

Fetch = Callable[[str, int, Path], Artifact]
"""Bring a version of a model to this machine, into a folder that is removed afterwards."""


@dataclass(frozen=True)
class Outcome:
    """What became of one model on one server.

    Attributes:
        endpoint: the server.
        model: the model.
        version: the version that was wanted; None when the model was to be unloaded.
        previous: the version that answered before, if any.
        changed: whether the server was changed.
        seconds: how long that took.
        error: why it failed; what served before still does.
    """

    endpoint: Endpoint
    model: str
    version: int | None
    previous: int | None
    changed: bool
    seconds: float
    error: MillraceError | None = None


def reconcile(
    desired: Mapping[str, int],
    repository: Repository,
    endpoints: Iterable[Endpoint],
    fetch: Fetch,
    *,
    left_alone: Collection[str] = (),
    device: Device = "cpu",
) -> tuple[Outcome, ...]:
    """Bring every server to the desired versions, as far as that goes.

    A model that fails leaves its older version serving and does not stop the others: its outcome
    carries the error. `checked(outcomes)` raises it. Doing it again changes nothing.

    Args:
        desired: the champion's version of each model.
        repository: the model repository that the servers read.
        endpoints: every server.
        fetch: brings a version that is not staged yet.
        left_alone: models that are neither loaded nor unloaded.
        device: where the instances run.
    """
    with repository.exclusive():
        return tuple(
            outcome
            for endpoint in endpoints
            for outcome in _reconcile_one(desired, repository, endpoint, fetch, left_alone, device)
        )


def checked(outcomes: Sequence[Outcome]) -> Sequence[Outcome]:
    """Return the outcomes, or raise the first error among them."""
    for outcome in outcomes:
        if outcome.error is not None:
            raise outcome.error
    return outcomes


def _reconcile_one(
    desired: Mapping[str, int],
    repository: Repository,
    endpoint: Endpoint,
    fetch: Fetch,
    left_alone: Collection[str],
    device: Device,
) -> Iterator[Outcome]:
    with TritonClient(endpoint) as client:
        try:
            actions = plan(desired, repository.versions(), client.index(), left_alone)
        except MillraceError as error:
            for model, version in sorted(desired.items()):
                yield Outcome(endpoint, model, version, None, False, 0.0, error)
            return
        stages = {action.model: action for action in actions if isinstance(action, Stage)}
        loads = {action.model: action for action in actions if isinstance(action, Load)}
        for model, version in sorted(desired.items()):
            if model not in loads:
                yield Outcome(endpoint, model, version, version, False, 0.0)
                continue
            yield _load_outcome(stages.get(model), loads[model], repository, client, fetch, device)
        for action in actions:
            if isinstance(action, Unload):
                yield _unload_outcome(action, client)


def _load_outcome(
    staging: Stage | None,
    loading: Load,
    repository: Repository,
    client: TritonClient,
    fetch: Fetch,
    device: Device,
) -> Outcome:
    start, failure = time.perf_counter(), None
    try:
        if staging is not None:
            stage(staging, repository, fetch)
        load(loading, repository, client, device=device)
    except MillraceError as error:
        failure = error
    return Outcome(
        endpoint=client.endpoint,
        model=loading.model,
        version=loading.version,
        previous=loading.previous,
        changed=failure is None,
        seconds=time.perf_counter() - start,
        error=failure,
    )


def _unload_outcome(action: Unload, client: TritonClient) -> Outcome:
    start, failure = time.perf_counter(), None
    try:
        unload(action, client)
    except MillraceError as error:
        failure = error
    seconds = time.perf_counter() - start
    return Outcome(
        client.endpoint, action.model, None, action.previous, failure is None, seconds, failure
    )


def stage(action: Stage, repository: Repository, fetch: Fetch) -> None:
    """Fetch a version and publish its folder.

    Raises:
        MillraceError: from `fetch`, or from `Repository.stage`.
    """
    with repository.workspace() as folder:
        repository.stage(action.model, action.version, fetch(action.model, action.version, folder))


def load(
    action: Load, repository: Repository, client: TritonClient, *, device: Device = "cpu"
) -> None:
    """Write the model's configuration, load it by gRPC, and see that the version answers.

    Raises:
        WorkError: the version was refused, with Triton's reason. The configuration is the old one
            again and the versions that were loaded still serve.
    """
    model, version = action.model, action.version
    artifact, signature = repository.artifact(model, version), repository.signature(model, version)
    # one config.pbtxt describes all loaded versions, so an older one that differs cannot stay
    keep = [
        each for each in action.keep if repository.signature(model, each).served == signature.served
    ]
    config = model_config(
        model,
        signature,
        artifact.serving,
        version_policy=specific([*keep, version]),
        labels=artifact.labels,
        device=device,
    )
    with _config_restored_on_failure(repository, model):
        repository.write_config(config, artifact.labels)
        client.load(model)
        _must_answer(action, client)


def unload(action: Unload, client: TritonClient) -> None:
    """Unload a model and wait until it answers no more.

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
def _config_restored_on_failure(repository: Repository, model: str) -> Iterator[None]:
    saved = repository.saved_config(model)
    try:
        yield
    except MillraceError:
        repository.restore(model, saved)
        raise


def _must_answer(action: Load, client: TritonClient) -> None:
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
