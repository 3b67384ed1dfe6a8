"""What is spoilt of a home or of its services, one thing at a time, while a command runs."""

import os
import random
import shutil
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

from tests.chaos.fault_site import MIB, NAME, Site, mount, mount_read_only, unmount

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
    mount(tables, 4 * MIB)
    shutil.copytree(kept, tables, dirs_exist_ok=True)
    try:
        with _filled(tables, chance.randrange(16 * 2**10)):
            yield {}
        shutil.rmtree(kept)
        shutil.copytree(tables, kept)
    finally:
        unmount(tables)
    shutil.rmtree(tables)
    shutil.move(kept, tables)


@contextmanager
def read_only_home(site: Site, _chance: random.Random) -> Iterator[Mapping[str, str]]:
    """The home's file system was remounted read-only, as after an error of its disk."""
    mount_read_only(site.home)
    try:
        yield {}
    finally:
        unmount(site.home)


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
