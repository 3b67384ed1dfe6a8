"""Put the splitter in front of a model on a replica, and remove it again.

With this order of loads no request fails, not even a request in flight:

1. `start_split` loads the arms while the model serves as before. Then it replaces the model's
   configuration by the splitter's and loads the model. Triton starts the splitter beside the
   running model and switches when the splitter is ready. Requests in flight end where they began.
2. `start_split` with another weight: Triton replaces the splitter by the next one in the same way.
3. The model's plain configuration is written and loaded, as in any switch of versions.
4. `stop_split` waits until the last splitter has answered its last request, which is when Triton
   deletes its counters, and then unloads the arms.

Requests fail if the model is unloaded, or if its arms are unloaded first. While the splitter
serves, a request for a version by number is answered only if it is the champion's number.

Triton 2.51 does not restart a splitter whose process is killed: its requests fail until the model
is loaded again. The same is true of every Python-based backend.
"""

import json
import time

from millrace.models.common.errors import WorkError
from millrace.serving.rollout import split_metrics
from millrace.serving.rollout.rollout import Split, arms_config, split_of, splitter_config
from millrace.serving.triton.client import TritonClient
from millrace.serving.triton.load_version import restore_config_on_failure, unload_model
from millrace.serving.triton.model_config import Signature, from_text, loaded_anew
from millrace.serving.triton.repository import Repository
from millrace.serving.triton.server_index import ARMS, ready_versions
from millrace.serving.triton.version_config import one_config_for, triton_kind
from millrace.serving.triton.version_folder import Artifact

DRAIN_SECONDS = 60.0
POLL_SECONDS = 0.05
STILL_SECONDS = 5.0
"""Ten times the interval in which a live splitter updates its counters."""


def current(repository: Repository, model: str) -> Split | None:
    """Return the step of the rollout in a model's configuration; None without a rollout."""
    config = repository.saved_config(model).config
    return split_of(from_text(config.decode())) if config else None


def start_split(
    split: Split,
    repository: Repository,
    client: TritonClient,
    *,
    anew: bool = False,
) -> None:
    """Serve a step of a rollout on a replica, whatever the replica serves now.

    Both versions must be staged. The splitter is loaded again even if it serves this step already,
    and then its counters on this replica restart at zero (`split_metrics.Reading.has_step` tells
    whether the step is loaded). Versions that are loaded stay loaded; with `anew`, they are loaded
    again.

    Raises:
        WorkError: the versions do not fit together, or Triton refused one of them. The replica
            serves as before, and the model's old configuration is restored.
        TransientError: the replica is unreachable.
    """
    signature = _common_signature(split, repository)
    artifact = repository.artifact(split.model, split.candidate)
    versions = (split.champion, split.candidate)
    if anew or ready_versions(client.index(), split.arms) != tuple(sorted(versions)):
        for version in versions:
            repository.link(split.model, version, split.arms, version)
        again = loaded_anew() if anew else None
        repository.write_config(arms_config(split, signature, artifact.serving, again))
        client.load(split.arms)
    with restore_config_on_failure(repository, split.model):
        config = splitter_config(split, signature, artifact.serving, artifact.labels)
        repository.write_config(config, artifact.labels)
        client.load(split.model)


def stop_split(model: str, client: TritonClient) -> None:
    """Unload the arms of a model on a replica that serves its plain configuration again.

    The folder of the arms may be removed when no replica has them loaded.

    Raises:
        TransientError: the replica is unreachable, or still has the arms loaded after a minute.
    """
    _wait_until_drained(client, model)
    unload_model(model + ARMS, client)


def _common_signature(split: Split, repository: Repository) -> Signature:
    """Return the inputs and outputs that both versions have.

    Raises:
        WorkError: the inputs, outputs or labels differ, or the versions answer in streams.
    """
    champion = repository.artifact(split.model, split.champion)
    candidate = repository.artifact(split.model, split.candidate)
    both = f"versions {split.champion} and {split.candidate} of {split.model}"
    hint = f"set rollout.kind to direct for the candidate, version {split.candidate}"
    signature = triton_kind(candidate).signature(candidate)
    if signature is None:
        raise WorkError(f"{both} cannot share requests because they answer in streams", hint=hint)
    if champion.columns and candidate.columns and not same_codes(champion, candidate):
        raise WorkError(
            f"{both} cannot share requests because a code means another category in each",
            hint=hint,
        )
    if not one_config_for(champion, candidate) or champion.labels != candidate.labels:
        raise WorkError(
            f"{both} cannot share requests because their inputs, outputs or labels differ",
            hint=hint,
        )
    return signature


def _wait_until_drained(client: TritonClient, model: str) -> None:
    """Wait until the splitters of a model have answered their last request, at most a minute.

    Triton deletes the counters of a splitter that ended. It keeps the counters of a splitter whose
    process was killed: they no longer change, while a live splitter updates its own twice a second.
    """
    began = changed = time.monotonic()
    seen: object = None
    while (now := time.monotonic()) - began < DRAIN_SECONDS:
        flushes = split_metrics.read_counters(client.endpoint).flushes(model)
        if flushes != seen:
            seen, changed = flushes, now
        if not flushes or now - changed >= STILL_SECONDS:
            return
        time.sleep(POLL_SECONDS)


def same_codes(one: Artifact, other: Artifact) -> bool:
    """Return whether the columns and the codes of their categories are those of both versions."""
    names = ("name", "kind", "width", "categories")
    found = [
        [[column[name] for name in names] for column in json.loads(str(each.columns))["columns"]]
        for each in (one, other)
    ]
    return found[0] == found[1]
