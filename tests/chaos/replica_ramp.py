"""`make soak`: replicas follow a load that rises and falls, and no request fails.

python -m tests.chaos.replica_ramp [REQUESTS] [MINUTES]

First REQUESTS requests by a ramp, for which the scaler's clock runs faster; then MINUTES of a
constant load with a true clock. A short form of the ramp is a test.
"""

import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from millrace.flows.triggers.replica_scaler import EVERY, ReplicaScaler
from millrace.models.config.replicas_spec import ReplicasSpec
from millrace.serving.guard.envoy_replicas import replica_endpoint
from millrace.serving.replicas import files
from millrace.serving.replicas.files import Fleet
from millrace.serving.replicas.load import Capacity, Load, TrafficMeter, mix_load
from tests.integration.replica_stand import NAME, Answers, ReplicaStand, replica_stand

SPEC = ReplicasSpec(min=1, max=3)
CAPACITY = Capacity(NAME, 150.0, 500.0)
FASTER = 30.0
"""How much faster the scaler's clock runs in the ramp: its five minutes are ten seconds."""
FEW, MANY = (1, 0.05), (8, 0.0)
"""Clients, and the pause of each between two requests."""


@dataclass
class Ramp:
    """What came of a ramp.

    Attributes:
        requests: how many were answered.
        failed: what failed.
        numbers: the numbers of replicas that were wanted, one after the other.
        longest_s: the slowest answer.
    """

    requests: int
    failed: list[str]
    numbers: list[int]
    longest_s: float


@contextmanager
def scaled(stand: ReplicaStand, faster: float) -> Iterator[list[int]]:
    """Let a scaler decide for the length of the block, and yield the numbers that it wanted."""
    meter, stop, numbers = TrafficMeter(), threading.Event(), [SPEC.min]

    def measure(fleet: Fleet) -> Load:
        serving = [each.number for each in fleet.replicas if each.state == "serving"]
        traffic = meter.measure(replica_endpoint(stand.guard, number) for number in serving)
        return mix_load(SPEC, [CAPACITY], traffic)

    def decide() -> None:
        run = stand.installation.run
        scaler = ReplicaScaler(run, SPEC, measure, lambda: faster * time.monotonic())
        while not stop.wait(EVERY / min(faster, 5.0)):
            scaler.check()
            wanted = files.read_wanted(run)
            if wanted is not None and wanted.replicas != numbers[-1]:
                numbers.append(wanted.replicas)

    thread = threading.Thread(target=decide)
    thread.start()
    try:
        yield numbers
    finally:
        stop.set()
        thread.join()


def run_ramp(stand: ReplicaStand, requests: int) -> Ramp:
    """Send few requests, many until there are enough, and few again until one replica is left."""
    seen: list[Answers] = []
    with scaled(stand, FASTER) as numbers:
        with stand.clients(*FEW) as answers:
            seen.append(answers)
            time.sleep(3)
        with stand.clients(*MANY) as answers:
            seen.append(answers)
            stand.until_serving(3, 120)
            stand.until(lambda: len(answers.versions) >= requests, 600)
        with stand.clients(*FEW) as answers:
            seen.append(answers)
            stand.until(lambda: list(stand.states().values()).count("serving") == 1, 180)
    return Ramp(
        sum(len(each.versions) for each in seen),
        [why for each in seen for why in each.failed],
        numbers,
        max(each.longest for each in seen),
    )


def run_constant(stand: ReplicaStand, minutes: float) -> Ramp:
    """Send a load for two replicas, with the scaler's true clock."""
    stand.want(2)
    stand.until_serving(2)
    with scaled(stand, 1.0) as numbers:
        numbers[:] = [2]
        with stand.clients(2, 0.012) as answers:
            time.sleep(60 * minutes)
    return Ramp(len(answers.versions), answers.failed, numbers, answers.longest)


def main(requests: int = 50_000, minutes: float = 10.0) -> None:
    """Run both, print what came of them, and fail if a request did."""
    with tempfile.TemporaryDirectory() as folder, replica_stand(Path(folder), SPEC) as stand:
        stand.until_serving(1)
        stand.promote(1)
        ramp = run_ramp(stand, requests)
        sys.stdout.write(f"{ramp}\n")
        constant = run_constant(stand, minutes)
        sys.stdout.write(f"{minutes:g} minutes of a constant load: {constant}\n")
    if ramp.failed or constant.failed or ramp.numbers[-1] != 1 or constant.numbers != [2]:
        sys.exit(1)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]), *map(float, sys.argv[2:3]))
