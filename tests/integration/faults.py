"""`make soak`: a disk that is full, a database that is corrupt, an MLflow that is silent.

    python -m tests.integration.faults [CASES] [SEED]

Each case spoils one thing, runs one command, puts the thing right and runs the command again. The
first run must end in time with a reason, without a stack trace; nothing that was there before may
be lost; the second run must succeed. A short form is a test. Needs root: a full disk is a small
tmpfs.
"""

import json
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import deltalake

from models.places import Endpoint, Places
from models.registry import CHAMPION, registry_of
from serving import triton
from serving.client import TritonClient
from serving.ledger import ledger_of
from tests.integration.conftest import Done, Home, make_home
from tests.integration.ports import free_ports

SECONDS_TO_TELL = 30.0
"""What a command may take longer than it takes undisturbed."""
NAME, DATE, OTHER_DATE = "tiny", "2026-01-05", "2026-01-06"
MIB = 2**20
HOME_MIB = 256
COMMANDS: Mapping[str, tuple[str, ...]] = {
    "run": ("run", "FILE", "--json"),
    "release": ("release", "--json"),
    "score": ("score", "FILE", "--date", OTHER_DATE, "--json"),
}
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
    """

    root: Path
    endpoint: Endpoint
    environment: dict[str, str]
    usual: dict[str, float] = field(default_factory=dict)

    @property
    def home(self) -> Path:
        """Where commands find it; a tmpfs is mounted here."""
        return self.root / "home"

    @property
    def pristine(self) -> Path:
        """The home as it was before any case."""
        return self.root / "pristine"

    @property
    def places(self) -> Places:
        """The installation."""
        uri = f"sqlite:///{self.home}/mlflow.db"
        return Places(self.home, uri, str(self.home / "tables"), triton=(self.endpoint,))

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
        tables = self.home / "tables"
        scored = deltalake.DeltaTable(str(tables / "predictions" / NAME))
        rows = scored.to_pyarrow_table(columns=["_key", "prediction", "date"]).to_pylist()
        registry = registry_of(self.places)
        return {
            "rows": sorted(map(str, (row for row in rows if row["date"] == DATE))),
            "dataset": deltalake.DeltaTable(str(tables / "datasets" / NAME)).version() >= 0,
            "versions": [registry.version(NAME, number).digest for number in (1, 2)],
            "champion": registry.champions(NAME)[NAME].version,
            "releases": [each.id for each in ledger_of(self.places).releases(NAME)][:2],
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


Spoiled = AbstractContextManager[Mapping[str, str]]
Fault = Callable[[Site, random.Random], Spoiled]
"""Spoils the home while it is entered; gives the variables of the command."""


def full_home(left: int) -> Fault:
    """The home's file system has so many bytes left."""

    @contextmanager
    def spoil(site: Site, chance: random.Random) -> Iterator[Mapping[str, str]]:
        with _filled(site.home, left + chance.randrange(max(left, 1))):
            yield {}

    return spoil


@contextmanager
def full_tables(site: Site, chance: random.Random) -> Iterator[Mapping[str, str]]:
    """The file system of the tables alone has next to nothing left."""
    tables, kept = site.home / "tables", site.root / "tables"
    shutil.copytree(tables, kept)
    _mount(tables, 4 * MIB)
    shutil.copytree(kept, tables, dirs_exist_ok=True)
    try:
        with _filled(tables, chance.randrange(16 * 2**10)):
            yield {}
        shutil.rmtree(kept)
        shutil.copytree(tables, kept)
    finally:
        _unmount(tables)
    shutil.rmtree(tables)
    shutil.move(kept, tables)


@contextmanager
def read_only_home(site: Site, _chance: random.Random) -> Iterator[Mapping[str, str]]:
    """The home's file system was remounted read-only, as after an error of its disk."""
    _remount(site.home, "ro")
    try:
        yield {}
    finally:
        _remount(site.home, "rw")


def corrupt(path: str, how: str) -> Fault:
    """A file of the home is cut, emptied, overwritten or not text.

    Args:
        path: below the home; the last of several that match a pattern.
        how: `cut`, `empty`, `noise` or `header`.
    """

    @contextmanager
    def spoil(site: Site, chance: random.Random) -> Iterator[Mapping[str, str]]:
        file = sorted(site.home.glob(path))[-1]
        whole = file.read_bytes()
        noise = chance.randbytes(max(len(whole) - 100, 100))
        spoiled = {
            "cut": whole[: chance.randrange(1, max(len(whole) - 1, 2))],
            "empty": b"",
            "header": chance.randbytes(100) + whole[100:],
            "noise": whole[:100] + noise,
        }
        file.write_bytes(spoiled[how])
        try:
            yield {}
        finally:
            file.write_bytes(whole)
            for beside in ("-wal", "-shm", "-journal"):
                file.with_name(file.name + beside).unlink(missing_ok=True)

    return spoil


@contextmanager
def corrupt_prefect(site: Site, chance: random.Random) -> Iterator[Mapping[str, str]]:
    """The database of the temporary Prefect server is no database any more."""
    folder = site.home / "prefect"
    folder.mkdir(exist_ok=True)
    file = folder / "prefect.db"
    file.write_bytes(b"SQLite format 3\0" + chance.randbytes(20_000))
    try:
        yield {"PREFECT_API_URL": ""}
    finally:
        shutil.rmtree(folder)


def mlflow_that(behaves: str) -> Fault:
    """MLflow's address belongs to something that is `silent`, `closing`, `failing` or `half`."""

    @contextmanager
    def spoil(_site: Site, _chance: random.Random) -> Iterator[Mapping[str, str]]:
        with _server(behaves) as address:
            yield {"MLFLOW_TRACKING_URI": address}

    return spoil


@contextmanager
def silent_prefect(_site: Site, _chance: random.Random) -> Iterator[Mapping[str, str]]:
    """Prefect's address takes connections and says nothing."""
    with _server("silent") as address:
        yield {"PREFECT_API_URL": f"{address}/api"}


@contextmanager
def silent_triton(_site: Site, _chance: random.Random) -> Iterator[Mapping[str, str]]:
    """Triton's address takes connections and says nothing."""
    with _server("silent") as address:
        port = address.rsplit(":", 1)[1]
        yield {"MILLRACE_TRITON": f"127.0.0.1:{port}:{port}"}


def _log(table: str) -> str:
    return f"tables/{table}/_delta_log/*.json"


CASES: Mapping[str, tuple[Fault, tuple[str, ...]]] = {
    "home full": (full_home(0), ("run", "release", "score")),
    "home has 64 KiB": (full_home(64 * 2**10), ("run", "release", "score")),
    "home has 1 MiB": (full_home(MIB), ("run", "release", "score")),
    "home has 4 MiB": (full_home(4 * MIB), ("run", "release", "score")),
    "tables full": (full_tables, ("run", "release", "score")),
    "home read-only": (read_only_home, ("run", "release", "score")),
    "mlflow.db cut": (corrupt("mlflow.db", "cut"), ("run", "release", "score")),
    "mlflow.db empty": (corrupt("mlflow.db", "empty"), ("release", "score")),
    "mlflow.db overwritten": (corrupt("mlflow.db", "noise"), ("run", "release", "score")),
    "mlflow.db no database": (corrupt("mlflow.db", "header"), ("run", "release", "score")),
    "prefect.db corrupt": (corrupt_prefect, ("run", "release", "score")),
    "log of the dataset cut": (corrupt(_log(f"datasets/{NAME}"), "cut"), ("run", "score")),
    "log of the dataset empty": (corrupt(_log(f"datasets/{NAME}"), "empty"), ("run", "score")),
    "log of the predictions cut": (corrupt(_log(f"predictions/{NAME}"), "cut"), ("score",)),
    "log of the predictions empty": (corrupt(_log(f"predictions/{NAME}"), "empty"), ("score",)),
    "log of the releases cut": (corrupt(_log("releases"), "cut"), ("release", "score")),
    "log of the releases noise": (corrupt(_log("releases"), "noise"), ("release", "score")),
    "a data file cut": (
        corrupt(f"tables/datasets/{NAME}/*.parquet", "cut"),
        ("run", "score"),
    ),
    "mlflow silent": (mlflow_that("silent"), ("run", "release", "score")),
    "mlflow closes": (mlflow_that("closing"), ("run", "release", "score")),
    "mlflow fails": (mlflow_that("failing"), ("run", "release", "score")),
    "mlflow silent but for health": (mlflow_that("half"), ("run", "release", "score")),
    "prefect silent": (silent_prefect, ("run", "release", "score")),
    "triton silent": (silent_triton, ("release",)),
}


@dataclass(frozen=True)
class Result:
    """What a case came to.

    Attributes:
        fault: of `CASES`.
        command: of `COMMANDS`.
        seconds: of the command with the fault.
        code: its exit code.
        what: what its error said.
        faults: what is wrong with that; nothing if all is well.
    """

    fault: str
    command: str
    seconds: float
    code: int
    what: str
    faults: tuple[str, ...]

    def __str__(self) -> str:
        """Return a line of the report."""
        return (
            f"{self.fault} / {self.command}: exit {self.code} after {self.seconds:.1f} s, "
            f"{self.what!r}: {'; '.join(self.faults) or 'well'}"
        )


def try_case(site: Site, fault: str, command: str, seed: int) -> Result:
    """Spoil, run, put right, look, run again."""
    restore(site)
    site.forget_served()
    before = site.content()
    limit = site.usual[command] + SECONDS_TO_TELL
    spoil, _ = CASES[fault]
    with spoil(site, random.Random(seed)) as env:
        done, seconds = site.run(command, env, limit + 60)
    wrong = [*_badly_told(done), *([f"{seconds:.0f} s"] if seconds > limit else [])]
    try:
        if not site.keeps(before):
            wrong.append("something is lost")
    except Exception as error:  # whatever cannot be read any more is what this looks for
        wrong.append(f"something is lost: {error!r}"[:300])
    again, _ = site.run(command, {}, limit + 60)
    if again.code != 0:
        wrong.append(
            f"the command fails once the fault is gone: {again.out[-400:]} {again.err[-400:]}"
        )
    what = done.json.get("what", "") if done.code and _is_json(done.out) else ""
    return Result(fault, command, seconds, done.code, str(what), tuple(wrong))


def _badly_told(done: Done) -> Iterator[str]:
    if done.code == 0:
        return  # it did not matter to this command
    if done.code not in (1, 2):
        yield f"exit code {done.code}: {done.err[-300:]}"
    if "Traceback" in done.out + done.err:
        yield f"a stack trace: {done.err[-600:]}"
    if not _is_json(done.out) or not done.json.get("what"):
        yield f"no JSON: {done.out[-300:]} {done.err[-300:]}"
    elif "unexpected fault" in done.json["what"]:
        yield f"not foreseen: {done.json['seen']} ({done.json['next']})"


def _is_json(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except json.JSONDecodeError:
        return False


@contextmanager
def a_site(
    root: Path, prefect_api: str, commands: Collection[str] = tuple(COMMANDS)
) -> Iterator[Site]:
    """Make the home that cases are tried on: two versions, of which the first is live.

    Args:
        root: an empty folder.
        prefect_api: a Prefect server.
        commands: that will be tried; each is timed undisturbed first.
    """
    rows = (f"{i},{i % 7}.5,{i * 37 % 11},{'ab'[(i % 7) > 2]}" for i in range(300))
    (root / "tiny.csv").write_text("id,x,w,y\n" + "\n".join(rows) + "\n")
    (root / "tiny.yaml").write_text(PIPELINE)
    endpoint = Endpoint("127.0.0.1", *free_ports(3))
    ports = (endpoint.http_port, endpoint.grpc_port, endpoint.metrics_port)
    named = {"MILLRACE_TRITON": ":".join(["127.0.0.1", *map(str, ports)])}
    site = Site(root, endpoint, make_home(root / "home", prefect_api).environment | named)
    site.home.mkdir()
    _mount(site.home, HOME_MIB * MIB)
    try:
        with triton.running(site.places.prepared(), endpoint):
            _fill(site)
            _copied(site.home, site.pristine)
            for command in commands:
                restore(site)
                site.forget_served()
                done, site.usual[command] = site.run(command, {}, 240)
                assert done.code == 0, done
            yield site
    finally:
        _unmount(site.home)


def _fill(site: Site) -> None:
    registry = registry_of(site.places)
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


class _Server(BaseHTTPRequestHandler):
    """An MLflow that closes every connection, fails, or is well and answers nothing else."""

    behaves = ""

    def do_GET(self) -> None:
        """Answer, or not."""
        is_health = self.path.endswith("/health")
        if self.behaves == "closing":
            self.connection.close()
        elif self.behaves == "half" and not is_health:
            time.sleep(300)
        else:
            self.send_response(200 if self.behaves == "half" else 500)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"OK")

    do_POST = do_GET

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def handle(self) -> None:
        """Answer a connection; whoever asks may go away."""
        with suppress(OSError, ValueError):
            super().handle()


@contextmanager
def _server(behaves: str) -> Iterator[str]:
    if behaves == "silent":
        with socket.create_server(("127.0.0.1", 0), backlog=64) as listening:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        return
    handler = type("Handler", (_Server,), {"behaves": behaves})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    server.block_on_close = False
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def _filled(folder: Path, left: int) -> Iterator[None]:
    """Fill the file system of a folder up to so many bytes, while this is entered."""
    ballast = folder / "ballast"
    with ballast.open("wb") as file:
        free = shutil.disk_usage(folder).free
        os.posix_fallocate(file.fileno(), 0, max(free - left, 1))
    try:
        yield
    finally:
        ballast.unlink()


def _mount(folder: Path, size: int) -> None:
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "tmpfs", str(folder)], check=True
    )


def _remount(folder: Path, how: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{how}", str(folder)], check=True)


def _unmount(folder: Path) -> None:
    subprocess.run(["umount", "-l", str(folder)], check=True)


@contextmanager
def _prefect(root: Path) -> Iterator[str]:
    from tests.integration.conftest import prefect_server

    with prefect_server(root / "prefect") as api:
        yield api


def main(cases: int, seed: int) -> int:
    """Try so many cases, every kind in turn; print each and return how many went wrong."""
    pairs = [(fault, command) for fault, (_, commands) in CASES.items() for command in commands]
    wrong = 0
    with (
        tempfile.TemporaryDirectory(prefix="faults-") as folder,
        _prefect(Path(folder)) as api,
        a_site(Path(folder), api) as site,
    ):
        _say(f"undisturbed: { ({name: round(s, 1) for name, s in site.usual.items()}) }")
        for number in range(cases):
            result = try_case(site, *pairs[number % len(pairs)], seed + number)
            wrong += bool(result.faults)
            _say(f"{number + 1:3} {result}")
    _say(f"{cases} faults: {cases - wrong} passed, {wrong} failed")
    return wrong


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    numbers = [int(word) for word in sys.argv[1:]] + [100, 0][len(sys.argv) - 1 :]
    sys.exit(bool(main(numbers[0], numbers[1])))
