"""The home that faults are tried on: two versions, of which the first is live, on a small tmpfs."""

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import deltalake

from millrace.models.common.installation import Endpoint, Installation
from millrace.models.registry.mlflow_registry import registry_of
from millrace.models.registry.version_files import CHAMPION
from millrace.serving.release.ledger import ledger_of
from millrace.serving.triton import server
from millrace.serving.triton.client import TritonClient
from tests.integration.conftest import Done, Home, make_home
from tests.integration.planted import good, ingest_rows, plant
from tests.integration.ports import free_ports

NAME, DATE, OTHER_DATE = "tiny", "2026-01-05", "2026-01-06"
MIB = 2**20
HOME_MIB = 256
COMMANDS: Mapping[str, tuple[str, ...]] = {
    "run": ("run", "FILE", "--json"),
    "release": ("release", "--json"),
    "score": ("score", "FILE", "--date", OTHER_DATE, "--json"),
}
FREE = {"promotion": {"require": {"max_metric_drop": None}}}
PIPELINE = """\
name: tiny
dataset: {source: tiny.csv, target: y, key: [id]}
model: {family: mlp, params: {hidden: [4]}}
training: {epochs: 30, num_workers: 1, learning_rate: 0.02}
export: {candidates: [onnx-fp32]}
promotion: {require: {max_metric_drop: null}}
"""


@dataclass
class Site:
    """A home that was trained, released and scored once, and its copy to spoil.

    A home holds its own path, so every case has it at the same place.

    Attributes:
        root: folder of all.
        endpoint: a Triton that serves the home's model repository.
        environment: what every command gets beside its own.
        usual: seconds of each command where nothing is wrong.
        has_scored: whether there are predictions, which must not get lost.
    """

    root: Path
    endpoint: Endpoint
    environment: dict[str, str]
    usual: dict[str, float] = field(default_factory=dict)
    has_scored: bool = True

    @property
    def home(self) -> Path:
        """Where commands find it; a tmpfs is mounted here."""
        return self.root / "home"

    @property
    def pristine(self) -> Path:
        """The home as it was before any case."""
        return self.root / "pristine"

    @property
    def installation(self) -> Installation:
        """The installation."""
        uri = f"sqlite:///{self.home}/mlflow.db"
        return Installation(self.home, uri, str(self.home / "tables"), triton=(self.endpoint,))

    def run(self, command: str, env: Mapping[str, str], timeout: float) -> tuple[Done, float]:
        """Run a command of `COMMANDS`; return what it said, and its seconds."""
        words = [str(self.root / "tiny.yaml") if w == "FILE" else w for w in COMMANDS[command]]
        began = time.monotonic()
        home = Home(self.home, self.environment)
        process = home.start(*words, env=dict(env), cwd=self.root, start_new_session=True)
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            out, err = process.communicate()
            return Done(-1, out, err), time.monotonic() - began
        return Done(process.returncode, out, err), time.monotonic() - began

    def content(self) -> dict[str, Any]:
        """Return what must not get lost, read by plain readers."""
        tables, rows = self.home / "tables", list[Any]()
        if self.has_scored:
            scored = deltalake.DeltaTable(str(tables / "predictions" / NAME))
            rows = scored.to_pyarrow_table(columns=["_key", "prediction", "date"]).to_pylist()
        registry = registry_of(self.installation)
        return {
            "rows": sorted(map(str, (row for row in rows if row["date"] == DATE))),
            "dataset": deltalake.DeltaTable(str(tables / "datasets" / NAME)).version() >= 0,
            "versions": [registry.version(NAME, number).digest for number in (1, 2)],
            "champion": registry.champions(NAME)[NAME].version,
            "releases": [each.id for each in ledger_of(self.installation).releases(NAME)][:2],
        }

    def forget_served(self) -> None:
        """Unload what an earlier case had Triton serve: of this home, that never happened."""
        with TritonClient(self.endpoint) as client:
            for entry in client.index():
                if entry.is_loaded:
                    client.unload(entry.name)

    def keeps(self, before: Mapping[str, Any]) -> bool:
        """Return whether everything of `before` is still there; more may be."""
        return self.content() == before


@contextmanager
def a_site(
    root: Path,
    prefect_api: str,
    commands: Collection[str] = tuple(COMMANDS),
    fill: Callable[[Site], None] | None = None,
) -> Iterator[Site]:
    """Make the home that cases are tried on: two versions, of which the first is live.

    Args:
        root: an empty folder.
        prefect_api: a Prefect server.
        commands: that will be tried; each is timed undisturbed first.
        fill: brings the versions there; by the commands themselves if left out.
    """
    rows = (f"{i},{i % 7}.5,{i * 37 % 11},{'ab'[(i % 7) > 2]}" for i in range(300))
    (root / "tiny.csv").write_text("id,x,w,y\n" + "\n".join(rows) + "\n")
    (root / "tiny.yaml").write_text(PIPELINE)
    endpoint = Endpoint("127.0.0.1", *free_ports(3))
    ports = (endpoint.http_port, endpoint.grpc_port, endpoint.metrics_port)
    named = {"MILLRACE_TRITON": ":".join(["127.0.0.1", *map(str, ports)])}
    site = Site(root, endpoint, make_home(root / "home", prefect_api).environment | named)
    site.home.mkdir()
    mount(site.home, HOME_MIB * MIB)
    try:
        with server.running(site.installation.prepared(), endpoint):
            (fill or _trained)(site)
            _copied(site.home, site.pristine)
            for command in commands:
                restore(site)
                site.forget_served()
                done, site.usual[command] = site.run(command, {}, 240)
                assert done.code == 0, done
            yield site
    finally:
        unmount(site.home)


def planted(site: Site) -> None:
    """Put two versions there by hand, and release the first: without Ray, in seconds."""
    site.has_scored = False
    installation = site.installation.prepared()
    ingest_rows(installation, NAME)
    registry = registry_of(installation)
    for seed in (0, 1):
        version = plant(installation, NAME, good(seed, pipeline=FREE))
        registry.set_alias(registry.version(NAME, version.number), CHAMPION)
        if seed == 0:
            done, _ = site.run("release", {}, 240)
            assert done.code == 0, done


def _trained(site: Site) -> None:
    registry = registry_of(site.installation)
    for number, more in ((1, ("release", "score")), (2, ())):
        done, _ = site.run("run", {}, 240)
        assert done.code == 0, done
        registry.set_alias(registry.version(NAME, number), CHAMPION)
        for command in more:
            done, _ = site.run(command, {}, 240)
            assert done.code == 0, done
    table = site.home / "tables/predictions" / NAME
    assert deltalake.DeltaTable.is_deltatable(str(table))


def restore(site: Site) -> None:
    """Bring the home to where it was before any case; the sockets of the running Triton stay."""
    for path in sorted(site.home.rglob("*"), reverse=True):
        if path.is_dir() and not path.is_symlink():
            with suppress(OSError):  # what holds a socket
                path.rmdir()
        elif not path.is_socket():
            path.unlink()
    _copied(site.pristine, site.home)


def _copied(source: Path, target: Path) -> None:
    def sockets(folder: str, names: list[str]) -> list[str]:
        return [name for name in names if Path(folder, name).is_socket()]

    shutil.copytree(source, target, symlinks=True, ignore=sockets, dirs_exist_ok=True)


def mount(folder: Path, size: int) -> None:
    """Put an empty file system of so many bytes there."""
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "tmpfs", str(folder)], check=True
    )


def mount_read_only(folder: Path) -> None:
    """Put the same files there again, to be read only; the servers' open logs are on the other."""
    for words in (("--bind", str(folder)), ("-o", "remount,bind,ro")):
        subprocess.run(["mount", *words, str(folder)], check=True)


def unmount(folder: Path) -> None:
    """Take it away, whoever uses it."""
    subprocess.run(["umount", "-l", str(folder)], check=True)
