"""Put the splitter before a model on a replica, and take it away again.

The order of loads in which no request fails, however many are in flight:

1. `start_split`: the arms are loaded while the model serves as before. Only then the model's
   configuration becomes the splitter's and the model is loaded: Triton starts the splitter beside
   what serves, and switches when it is ready. Requests that are in flight end where they began.
2. `start_split` again with another weight: Triton does the same with the next splitter.
3. The model's plain configuration is written and loaded, as in any switch of versions.
4. `stop_split`: the arms stay until the last splitter has answered its last request, which is when
   Triton deletes its counters, and are unloaded then.

A model that is unloaded, or whose arms are unloaded first, fails requests. Requests that ask for a
version by its number get an answer for the champion's alone while the splitter serves.

A splitter whose process is killed is not started again by Triton 2.51, and fails requests until its
model is loaded once more; the same holds for every Python-based backend.
"""

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

DRAIN_SECONDS = 60.0
POLL_SECONDS = 0.05
STILL_SECONDS = 5.0
"""Ten times the interval in which a live splitter updates its counters."""


def current(repository: Repository, model: str) -> Split | None:
    """Return the step of the rollout in a model's configuration, or None."""
    config = repository.saved_config(model).config
    return split_of(from_text(config.decode())) if config else None


def start_split(
    split: Split,
    repository: Repository,
    client: TritonClient,
    *,
    anew: bool = False,
) -> None:
    """Serve a step of a rollout on a replica, whatever it serves now.

    Both versions must be staged. The step is loaded anew even if it was loaded: what was counted of
    it on this replica begins at zero (`split_metrics.Reading.has_step` shows whether it is there).
    Versions that are loaded stay as they are, or are loaded again `anew`.

    Raises:
        WorkError: the versions do not fit together, or Triton refused one of them; what served
            before still does, and the model's configuration is the old one again.
        TransientError: the replica went away.
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
    """Unload the arms of a model on a replica that serves it by its plain configuration again.

    Their folder may be removed when no replica has them loaded.

    Raises:
        TransientError: the replica went away, or still has them after a minute.
    """
    _wait_until_drained(client, model)
    unload_model(model + ARMS, client)


def _common_signature(split: Split, repository: Repository) -> Signature:
    """Return the inputs and outputs that both versions have.

    Raises:
        WorkError: their inputs, outputs or labels differ, or they answer in streams.
    """
    champion = repository.artifact(split.model, split.champion)
    candidate = repository.artifact(split.model, split.candidate)
    both = f"versions {split.champion} and {split.candidate} of {split.model}"
    hint = "set rollout.kind to direct for this version"
    signature = triton_kind(candidate).signature(candidate)
    if signature is None:
        raise WorkError(f"{both} cannot share requests: they answer in streams", hint=hint)
    if not one_config_for(champion, candidate) or champion.labels != candidate.labels:
        raise WorkError(
            f"{both} cannot share requests: their inputs, outputs or labels differ", hint=hint
        )
    return signature


def _wait_until_drained(client: TritonClient, model: str) -> None:
    """Wait until the splitters of a model have answered their last request, at most a minute.

    Triton deletes the counters of a splitter that ended, and keeps those of one whose process was
    killed: they stand still, while a live splitter updates its own twice a second.
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
