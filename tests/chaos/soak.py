"""`make soak`: swaps and rollbacks under load, each answer checked. A short form is a test.

python -m tests.chaos.soak [SWAPS] [REQUESTS] [RATE]
"""

import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from millrace.models.common.installation import Installation
from millrace.serving.triton import server
from tests.integration.asked import Line
from tests.integration.planted import good, plant
from tests.integration.ports import free_endpoint

NAME = "soaked"
FREE = {"promotion": {"require": {"max_metric_drop": None}}}
QUIET_SHARE = 0.1
SEEN = "seen.json"


@dataclass(frozen=True)
class Report:
    """What a soak came to; latencies in milliseconds.

    Attributes:
        requests: sent while versions were swapped.
        swaps: promotions and rollbacks done.
        failed: requests that failed.
        wrong: answers that are not those of the version that claims them.
        by_version: answers of each version.
        quiet_p99: p99 of the same load when nothing was swapped.
        p99: p99 while versions were swapped.
        worst: the slowest answer while versions were swapped.
        slowest_swap_s: the longest release.
    """

    requests: int
    swaps: int
    failed: dict[str, int]
    wrong: int
    by_version: dict[str, int]
    quiet_p99: float
    p99: float
    worst: float
    slowest_swap_s: float

    def __str__(self) -> str:
        return (
            f"{self.requests:,} requests, {self.swaps} swaps and rollbacks: "
            f"{sum(self.failed.values())} failed, {self.wrong} wrong; "
            f"by version {self.by_version}; "
            f"p99 {self.p99:.1f} ms, worst {self.worst:.0f} ms, undisturbed p99 "
            f"{self.quiet_p99:.1f} ms; slowest release {self.slowest_swap_s:.2f} s"
        )


def soak(home: Path, swaps: int, requests: int, rate: float) -> Report:
    """Serve two versions in turn under Poisson load.

    Args:
        home: an empty folder.
        swaps: how often to change the champion, at least.
        requests: how many to send meanwhile.
        rate: requests a second.
    """
    endpoint = free_endpoint()
    uri = f"sqlite:///{home}/mlflow.db"
    installation = Installation(home, uri, str(home / "tables"), triton=(endpoint,)).prepared()
    with server.running(installation, endpoint) as client:
        line = Line(installation, client)
        versions = [plant(installation, NAME, good(seed, pipeline=FREE)) for seed in (0, 1)]
        for version in versions:  # both are proved before the load
            line.promote(version)
            line.release()
        quiet = _finished(_load(line, int(requests * QUIET_SHARE), rate), line)
        under_load, times = _load(line, requests, rate), []
        time.sleep(1)
        while len(times) < swaps or under_load.poll() is None:
            line.promote(versions[len(times) % 2])
            start = time.perf_counter()
            line.release()
            times.append(time.perf_counter() - start)
            time.sleep(max(0.0, requests / rate / swaps - times[-1] - 0.1))
        seen = _finished(under_load, line)
    return Report(
        requests=requests,
        swaps=len(times),
        failed=seen["failed"],
        wrong=seen["wrong"],
        by_version=seen["by_version"],
        quiet_p99=float(np.quantile(quiet["latencies_ms"], 0.99)),
        p99=float(np.quantile(seen["latencies_ms"], 0.99)),
        worst=max(seen["latencies_ms"]),
        slowest_swap_s=max(times),
    )


def _load(line: Line, requests: int, rate: float) -> "subprocess.Popen[bytes]":
    """Start the load in a process of its own, so that releases do not hold it up."""
    seeds = json.dumps({"1": 0, "2": 1})
    address = line.client.endpoint.grpc
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "tests.chaos.open_loop"),
            *(address, NAME, seeds, str(rate), str(requests), str(line.installation.home / SEEN)),
        ],
    )


def _finished(process: "subprocess.Popen[bytes]", line: Line) -> dict:
    assert process.wait() == 0
    return json.loads((line.installation.home / SEEN).read_text())


def main() -> None:
    given = [float(argument) for argument in sys.argv[1:]]
    swaps, requests, rate = given + [50, 100_000, 800][len(given) :]
    with tempfile.TemporaryDirectory() as home:
        report = soak(Path(home), int(swaps), int(requests), rate)
    sys.stdout.write(f"{report}\n")
    sys.exit(bool(report.failed or report.wrong))


if __name__ == "__main__":
    main()
