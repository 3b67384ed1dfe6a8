"""How many replicas of Triton `millrace up` runs: what the pipeline files of the home allow."""

from contextlib import suppress
from dataclasses import dataclass

from millrace.flows.settings import Settings
from millrace.models.common.errors import InputError
from millrace.models.config.pipeline_file import load_pipeline
from millrace.models.config.replicas_spec import ReplicasSpec
from millrace.serving.guard.envoy_replicas import replica_endpoint
from millrace.serving.replicas.bounds import combine_bounds
from millrace.serving.replicas.files import (
    Fleet,
    RunningReplica,
    fault_of_files,
    forget_bounds,
    read_bounds,
    read_fleet,
    read_wanted,
)
from millrace.serving.triton.server import clean_up

NEEDS_GUARD = (
    "MILLRACE_GUARD=off: serving.replicas asks for several Tritons, which need the guard in front "
    "of them; one runs"
)


@dataclass(frozen=True)
class ReplicasStatus:
    """The replicas of Triton, and why there are so many.

    Attributes:
        fewest: how many always run.
        most: how many may run.
        wanted: how many should run now.
        reason: why.
        dry_run: whether a change is only logged.
        needed: how many the load needs, in a dry run; else None.
        fault: why one of them cannot start; empty if all can.
        replicas: each one's process and what it does.
    """

    fewest: int
    most: int
    wanted: int
    reason: str
    dry_run: bool
    needed: int | None
    fault: str
    replicas: tuple[RunningReplica, ...]


def allowed_replicas(settings: Settings) -> ReplicasSpec:
    """Return how many replicas the pipeline files of the home allow.

    These are the files of MILLRACE_PIPELINES and those that `millrace schedule` added. A file that
    cannot be read does not count.
    """
    if settings.triton is not None:
        return ReplicasSpec()
    files = dict.fromkeys((*settings.pipeline_files(), *settings.installation().pipeline_files))
    found = []
    for file in files:
        with suppress(InputError):
            found.append(load_pipeline(file).serving.replicas)
    return combine_bounds(found)


def clean_up_replicas(settings: Settings) -> None:
    """Remove what killed replicas left, and return to one Triton; no replica may run.

    A home that allows fewer of them later would not start the others, and so not clean up.
    """
    if settings.triton is None:
        for number in range(2, read_bounds(settings.run).max + 1):
            endpoint = replica_endpoint(settings.local_triton, number)
            clean_up(settings.installation(), endpoint)
    forget_bounds(settings.run)


def replicas_status(settings: Settings) -> ReplicasStatus | None:
    """Return the state of the replicas; None where one Triton runs alone."""
    fleet, bounds = read_fleet(settings.run), read_bounds(settings.run)
    fault = fault_of_files(settings.run)
    if fleet is None and fault:  # what runs cannot be written
        fleet = Fleet(settings.local_triton.grpc_port, bounds.min, ())
    if fleet is None or settings.triton is not None:
        return None
    wanted = read_wanted(settings.run)
    fixed = "serving.replicas is a fixed number"
    started = "the fewest that serving.replicas allows"
    return ReplicasStatus(
        fewest=bounds.min,
        most=bounds.max,
        wanted=fleet.wanted,
        reason=wanted.reason if wanted else fixed if bounds.min == bounds.max else started,
        dry_run=bounds.dry_run,
        needed=wanted.needed if wanted else None,
        fault=fault or fleet.fault,
        replicas=fleet.replicas,
    )
