"""A Ray cluster of real nodes on this machine: each `ray start`, with an address of its own."""

import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tests.integration.ports import free_ports

CPUS = 2
OBJECT_STORE = 150_000_000
HEAD, SECOND = "127.0.0.2", "127.0.0.3"
"""Loopback too; 127.0.0.1 is made another address by Ray."""
START_SECONDS = 90


@dataclass
class Node:
    """A node.

    Attributes:
        process: `ray start`, whose children are all of it.
    """

    process: "subprocess.Popen[bytes]"

    def processes(self) -> list[psutil.Process]:
        """Return all that is of the node."""
        try:
            start = psutil.Process(self.process.pid)
            return [*start.children(recursive=True), start]
        except psutil.NoSuchProcess:
            return []

    def titles(self) -> list[str]:
        """Return what its processes say that they do."""
        found = []
        for process in self.processes():
            try:
                found.append((process.cmdline() or [""])[0].strip())
            except psutil.Error:
                continue
        return found

    def kill(self) -> None:
        """Kill the whole node at once."""
        processes = self.processes()
        for process in processes:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        psutil.wait_procs(processes, 30)
        self.process.wait(30)


@dataclass
class Cluster:
    """A cluster.

    Attributes:
        folder: of its nodes; short, or the names of Ray's sockets would be too long.
        token: that it asks for.
        ports: of the head: of Ray, and of the Jobs API.
        nodes: the head first.
    """

    folder: Path
    token: str = field(default_factory=lambda: secrets.token_hex(16))
    ports: tuple[int, int] = field(default_factory=lambda: (free_ports(1)[0], free_ports(1)[0]))
    nodes: list[Node] = field(default_factory=list)

    @property
    def address(self) -> str:
        """Of its Jobs API."""
        return f"http://127.0.0.1:{self.ports[1]}"

    @property
    def client(self) -> Mapping[str, str]:
        """The variables of a command that uses it."""
        return {"RAY_ADDRESS": self.address, "RAY_AUTH_TOKEN": self.token}

    def start_head(self) -> None:
        """Start the first node, and wait until its Jobs API answers."""
        ray, dashboard = self.ports
        here = (f"--port={ray}", f"--dashboard-port={dashboard}", "--dashboard-host=127.0.0.1")
        client = f"--ray-client-server-port={free_ports(1)[0]}"
        self._start("head", HEAD, "--head", *here, client)
        self._wait(1)

    def start_second(self) -> Node:
        """Start a second node, and wait until the cluster has it."""
        self._start("second", SECOND, f"--address={HEAD}:{self.ports[0]}")
        self._wait(2)
        return self.nodes[-1]

    def _start(self, name: str, ip: str, *options: str) -> None:
        names = ("object-manager", "node-manager", "dashboard-agent-listen", "dashboard-agent-grpc")
        names = (*names, "runtime-env-agent", "metrics-export")
        ports = [f"--{n}-port={p}" for n, p in zip(names, free_ports(len(names)), strict=True)]
        # A folder of its own, as on a machine of its own.
        folder = self.folder / f"{name}{len(self.nodes)}"
        folder.mkdir()
        bin = Path(sys.executable).parent
        words = [
            *(str(bin / "ray"), "start", "--block", "--disable-usage-stats", *options, *ports),
            *(f"--node-ip-address={ip}", f"--num-cpus={CPUS}", f"--temp-dir={folder}"),
            *("--min-worker-port=0", "--max-worker-port=0"),
            f"--object-store-memory={OBJECT_STORE}",
        ]
        clean = {n: v for n, v in os.environ.items() if not n.startswith(("RAY_", "MILLRACE_"))}
        environment = clean | {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": self.token,
            # A node that does not answer is dead after 5 s, not 20.
            "RAY_health_check_period_ms": "1000",
            # A job's program is what `python` is to the head.
            "PATH": f"{bin}:{clean.get('PATH', '')}",
        }
        with (folder / "start.log").open("wb") as log:
            process = subprocess.Popen(
                words, env=environment, stdout=log, stderr=subprocess.STDOUT, cwd=folder
            )
        self.nodes.append(Node(process))

    def _wait(self, nodes: int) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            assert self.nodes[-1].process.poll() is None, self._said()
            if self._alive() >= nodes:
                return
            time.sleep(0.2)
        raise AssertionError(f"the cluster has no {nodes} nodes\n{self._said()}")

    def jobs(self) -> list[dict[str, Any]]:
        """Return the jobs that were ever submitted, as the Jobs API tells them."""
        told = json.loads(self._ask("api/jobs/"))
        return [each for each in told if each["submission_id"]]

    def _alive(self) -> int:
        try:
            return self._ask("api/v0/nodes").count('"state": "ALIVE"')
        except (urllib.error.URLError, OSError):
            return 0

    def _ask(self, path: str) -> str:
        headers = {"Authorization": f"Bearer {self.token}"}
        asked = urllib.request.Request(f"{self.address}/{path}", headers=headers)
        with urllib.request.urlopen(asked, timeout=30) as answer:
            return str(answer.read().decode())

    def _said(self) -> str:
        return "\n".join(log.read_text() for log in self.folder.glob("*/start.log"))


@contextmanager
def cluster_of_two() -> Iterator[Cluster]:
    """Run a cluster of two nodes while the block runs."""
    folder = Path(tempfile.mkdtemp(prefix="mr"))
    cluster = Cluster(folder)
    try:
        cluster.start_head()
        cluster.start_second()
        yield cluster
    finally:
        for node in reversed(cluster.nodes):
            node.kill()
        shutil.rmtree(folder, ignore_errors=True)
