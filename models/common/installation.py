"""Where this installation keeps its state and finds its services.

An `Installation` is built once by `millrace.flows.settings`, the one reader of the environment
variables `MILLRACE_*`, and passed to everything below.
"""

import ipaddress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile
from urllib.parse import urlsplit

from millrace.models.common.errors import WorkError
from millrace.models.common.home_version import check_version, require_version

EMBEDDED = "local"
"""Value of `ray_address` for the embedded Ray, which starts and stops with each command."""


@dataclass(frozen=True)
class Endpoint:
    """One Triton server.

    Attributes:
        host: its host.
        http_port: its HTTP port.
        grpc_port: its gRPC port.
        metrics_port: the port of its Prometheus metrics.
        token: token that clients must send to load and unload models; empty if none is required.
            It is left out of `repr`, of the JSON and of comparisons.
        replica: its number, if it is one of several behind one guard; None: whoever answers there.
    """

    host: str = "127.0.0.1"
    http_port: int = 8000
    grpc_port: int = 8001
    metrics_port: int = 8002
    token: str = field(default="", repr=False, compare=False, kw_only=True)
    replica: int | None = field(default=None, kw_only=True)

    def __str__(self) -> str:
        """Return what tells it from all other servers, for messages and tables."""
        return self.grpc if self.replica is None else f"{self.grpc} replica {self.replica}"

    @property
    def grpc(self) -> str:
        """Address for `tritonclient.grpc`, `host:port`."""
        return f"{self.host}:{self.grpc_port}"

    @property
    def http(self) -> str:
        """Address for `tritonclient.http`, `host:port`."""
        return f"{self.host}:{self.http_port}"

    def as_json(self) -> dict[str, object]:
        """Return all values but the token, as `--json` prints them."""
        values: dict[str, object] = {
            "host": self.host,
            "http_port": self.http_port,
            "grpc_port": self.grpc_port,
            "metrics_port": self.metrics_port,
        }
        return values if self.replica is None else values | {"replica": self.replica}


@dataclass(frozen=True)
class ArrivalsKept:
    """How much of the record of arrivals (when requests came, and how large) is kept.

    Attributes:
        hours: for how long; 0: nothing is recorded.
        megabytes: most that the files may have.
    """

    hours: float = 48.0
    megabytes: float = 200.0


@dataclass(frozen=True)
class Installation:
    """Folders, URIs and endpoints of one installation.

    Attributes:
        home: `MILLRACE_HOME`, absolute; mode 0700 once `prepared()`.
        tracking_uri: MLflow tracking and registry, `sqlite:///…` when embedded.
        tables_uri: root of the Delta tables, a path or `s3://…`.
        ray_address: `EMBEDDED`, the address of a cluster, or the address of its Jobs API.
        triton: the Triton servers to reconcile; requests go to the first.
        vllm_python: Python interpreter of an environment with vLLM; None: this interpreter.
        pipelines: pipeline files of the home folder's owner, as paths or globs.
        trusted_signers: public keys, base64, that this home trusts beside its own.
        ingest_memory: bytes that the rows of an ingestion may take; None: a quarter of the memory.
        arrivals_kept: how much of the record of arrivals is kept.
    """

    home: Path
    tracking_uri: str
    tables_uri: str
    ray_address: str = EMBEDDED
    triton: tuple[Endpoint, ...] = (Endpoint(),)
    vllm_python: Path | None = None
    pipelines: tuple[str, ...] = ()
    trusted_signers: tuple[str, ...] = ()
    ingest_memory: int | None = None
    arrivals_kept: ArrivalsKept = ArrivalsKept()

    @property
    def artifacts(self) -> Path:
        """Folder of MLflow's artifacts when MLflow is embedded."""
        return self.home / "artifacts"

    @property
    def model_repository(self) -> Path:
        """Folder that Triton serves from."""
        return self.home / "model_repository"

    @property
    def logs(self) -> Path:
        """Folder of the services' logs."""
        return self.home / "logs"

    @property
    def run(self) -> Path:
        """Folder of process ids, sockets and tokens, which are used only while something runs."""
        return self.home / "run"

    @property
    def staging(self) -> Path:
        """Folder where work is prepared before it is published; safe to delete when idle."""
        return self.home / "staging"

    @property
    def receipts(self) -> Path:
        """Folder of the receipts of batch jobs; safe to delete."""
        return self.home / "receipts"

    @property
    def timing_caches(self) -> Path:
        """Folder of TensorRT's timing caches; safe to delete."""
        return self.home / "timing_caches"

    @property
    def pipeline_files(self) -> tuple[Path, ...]:
        """The pipeline files that exist now."""
        return tuple(file for pattern in self.pipelines for file in _find_files(pattern))

    def table(self, *parts: str) -> str:
        """Return the URI of a table, `tables_uri/part/part`."""
        return "/".join([self.tables_uri.rstrip("/"), *parts])

    def prepared(self) -> "Installation":
        """Create the home folder (mode 0700) and its parts, and return self.

        Raises:
            InputError: this code cannot read the layout of the home folder.
            WorkError: the home folder cannot be created or written.
        """
        try:
            check_version(self.home)
            self.home.mkdir(parents=True, exist_ok=True)
            self.home.chmod(0o700)
            require_version(self.home)
            parts = (self.artifacts, self.model_repository, self.logs, self.run, self.staging)
            for folder in parts:
                folder.mkdir(exist_ok=True)
            with TemporaryFile(dir=self.run):  # tries to write, under a unique name
                pass
        except OSError as error:
            raise WorkError(
                f"the Millrace home folder {self.home} cannot be written",
                seen=error.strerror or error,
                valid="a folder that this user can create and write",
                hint="set MILLRACE_HOME to a writable folder, or fix the permissions",
            ) from error
        return self


def _find_files(pattern: str) -> list[Path]:
    """Return the files that an absolute path or glob matches, sorted."""
    path = Path(pattern)
    matches = sorted(Path(path.anchor).glob(str(path.relative_to(path.anchor))))
    return [match for match in matches if match.is_file()]


def has_jobs_api(ray_address: str) -> bool:
    """Return whether an address is that of Ray's Jobs API, which accepts no direct connections."""
    return ray_address.startswith(("http://", "https://"))


def is_this_machine(address: str) -> bool:
    """Return whether an address with a scheme is on loopback."""
    host = urlsplit(address).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
