"""The settings of one installation, read from environment variables here and nowhere else.

`load()` reads them; `millrace.flows.tool_variables` passes them on to Prefect, MLflow and Ray.
Importing this module imports none of the three.
"""

import os
import secrets
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import unquote, urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from millrace.flows import run_state
from millrace.models.common.errors import InputError, WorkError
from millrace.models.common.home_version import check_version
from millrace.models.common.installation import EMBEDDED, ArrivalsKept, Endpoint, Installation
from millrace.models.common.private_files import read_or_create_secret
from millrace.models.ray.warm import WarmRay

LOOPBACK = "127.0.0.1"
DEFAULT_DEPLOYMENTS = Path(__file__).parents[1] / "infra" / "prefect.yaml"
DEFAULT_PIPELINES = ("examples/digits.yaml",)

MARK = "MILLRACE_SUPERVISED"
"""Variable that is set for every process under the supervisor.

By this variable `down` finds processes that outlived the supervisor.
"""

PORTS = (
    *("mlflow_port", "prefect_port", "webhook_port", "openai_port"),
    *("triton_http_port", "triton_grpc_port", "triton_metrics_port"),
)


def _split(value: object) -> object:
    """Split a comma-separated list; return anything but a string unchanged."""
    if not isinstance(value, str):
        return value
    return tuple(part for part in (part.strip() for part in value.split(",")) if part)


def _parse_endpoints(value: object) -> object:
    """Parse a comma-separated list of servers, each `host:http:grpc[:metrics]` with its ports."""
    if value is None:
        return None
    items = _split(value)
    return tuple(map(_parse_endpoint, items if isinstance(items, tuple | list) else (items,)))


def _parse_endpoint(item: object) -> Endpoint:
    if isinstance(item, Endpoint):
        return item
    host, *ports = str(item).rsplit(":", 3 if str(item).count(":") >= 3 else 2)
    numbers = [int(port) for port in ports if port.isdigit() and 0 < int(port) < 65536]
    if not host or len(numbers) != len(ports) or len(ports) < 2:
        raise ValueError(f"{item!r} is not host:http:grpc or host:http:grpc:metrics")
    return Endpoint(host, *numbers)


def absolute(path: Path) -> Path:
    """Return an absolute path, with symbolic links as given."""
    return Path(os.path.abspath(path.expanduser()))  # noqa: PTH100  (resolve() follows links)


def _absolute_tables(tables: str) -> str:
    """Return the root of the tables with a path made absolute; a URI is unchanged.

    Services run in another folder than commands, so a relative path would mean another folder.
    """
    return tables if "://" in tables else str(absolute(Path(tables)))


def _absolute_database(uri: str) -> str:
    """Return a URI of an SQLite database with an absolute path; any other URI is unchanged."""
    scheme, prefix, path = uri.partition("sqlite:///")
    return uri if scheme or not prefix or not path else f"sqlite:///{absolute(Path(path))}"


def _require_separable_login(address: str) -> str:
    """Refuse an address whose login cannot be recognized, because messages would show the login."""
    if "@" not in address or address.startswith(("sqlite:", "file:")):
        return address
    is_odd = "://" not in address or any(c.isspace() or c in "'\"<>" for c in address)
    if is_odd or not _has_valid_port(address):
        raise ValueError(
            "scheme://user:password@host:port, with %XX for every character of the user and the "
            "password that is not a letter or a digit"
        )
    return address


def _has_valid_port(address: str) -> bool:
    """Return whether an http address has a valid port or no port; True for other schemes."""
    try:
        parts = urlsplit(address)
        return parts.scheme not in ("http", "https") or parts.port != 0
    except ValueError:
        return False


def split_login(address: str | None) -> tuple[str | None, tuple[str, str] | None]:
    """Return an http address without its login, and the login as user and password.

    The login is None if the address has none.
    """
    try:
        parts = urlsplit(address or "")
    except ValueError:  # the client that connects to the address reports the error
        return address, None
    if parts.scheme not in ("http", "https") or "@" not in parts.netloc:
        return address, None
    login, _, host = parts.netloc.rpartition("@")
    user, _, password = login.partition(":")
    return parts._replace(netloc=host).geturl(), (unquote(user), unquote(password))


LOGINS = ("MLFLOW_TRACKING_URI", "PREFECT_API_URL")
Port = Annotated[int, Field(ge=1, le=65535)]
Words = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split)]
AbsolutePath = Annotated[Path, AfterValidator(absolute)]
Address = Annotated[str, AfterValidator(_require_separable_login)]


class Settings(BaseSettings):
    """The settings of one installation, read from environment variables.

    `MLFLOW_TRACKING_URI`, `PREFECT_API_URL` and `MILLRACE_TRITON` are None unless the user chose
    them: a chosen server runs elsewhere, and `millrace up` does not start it.
    """

    model_config = SettingsConfigDict(
        env_prefix="MILLRACE_", frozen=True, extra="ignore", populate_by_name=True
    )

    home: AbsolutePath = Field(
        Path(".millrace"), description="Folder of databases, artifacts and logs."
    )
    mlflow_tracking_uri: Annotated[Address, AfterValidator(_absolute_database)] | None = Field(
        None, validation_alias="MLFLOW_TRACKING_URI", description="MLflow tracking and registry."
    )
    prefect_api_url: Address | None = Field(
        None, validation_alias="PREFECT_API_URL", description="API of a Prefect server."
    )
    ray_address: str = Field(
        EMBEDDED,
        validation_alias="RAY_ADDRESS",
        description="A Ray cluster, host:6379; its Jobs API, http://host:8265; or local.",
    )
    tables: Annotated[str, AfterValidator(_absolute_tables)] | None = Field(
        None, description="Root of the Delta tables, a path or s3://…."
    )
    triton: Annotated[tuple[Endpoint, ...] | None, NoDecode, BeforeValidator(_parse_endpoints)] = (
        Field(None, min_length=1, description="Triton servers: host:http:grpc[:metrics],….")
    )
    vllm_python: AbsolutePath | None = Field(
        None, description="Python with vLLM installed, to measure variants and score batches."
    )
    mlflow_port: Port = Field(5000, description="Port of the MLflow server.")
    prefect_port: Port = Field(4200, description="Port of the Prefect server.")
    webhook_port: Port = Field(8010, description="Port of the receiver of MLflow's webhook.")
    openai_port: Port = Field(8020, description="Port of the OpenAI-compatible server.")
    triton_http_port: Port = Field(8000, description="HTTP port of Triton.")
    triton_grpc_port: Port = Field(8001, description="gRPC port of Triton.")
    triton_metrics_port: Port = Field(8002, description="Metrics port of Triton.")
    guard: bool = Field(
        True, description="Whether a proxy checks the requests to the Triton of `up`."
    )
    arrivals_hours: float = Field(
        48.0,
        ge=0,
        description="Hours for which the guard's record of arrivals is kept; 0: none is made.",
    )
    arrivals_mb: float = Field(
        200.0, ge=1, description="Most megabytes of the guard's record of arrivals."
    )
    pipelines: Words = Field(
        DEFAULT_PIPELINES, description="Pipeline files or globs whose jobs are scheduled."
    )
    deployments: AbsolutePath = Field(
        DEFAULT_DEPLOYMENTS, description="The prefect.yaml whose deployments are served."
    )
    mlflow_auth: bool = Field(
        False,
        description="Whether the MLflow of `up` requires a login: HOME/mlflow_admin.password.",
    )
    trusted_signers: Words = Field(
        (), description="Public keys (signing.pub) of other homes whose versions are trusted."
    )
    ingest_memory_gib: float | None = Field(
        None, gt=0, description="Memory for the rows of an ingestion; a quarter of the machine's."
    )
    ray_idle: float = Field(
        600.0,
        ge=0,
        description="Seconds after which the unused Ray of `up` stops; 0: none is kept.",
    )
    alert_url: str | None = Field(
        None,
        pattern="^https?://",
        description="Webhook that gets a POST of JSON when something went wrong.",
    )
    derived: dict[str, str] = Field(
        default_factory=dict, description="Set by Millrace: addresses that no user chose, as JSON."
    )

    @model_validator(mode="before")
    @classmethod
    def _drop_derived(cls, data: Any) -> Any:
        """Ignore the addresses that `tool_variables.apply()` put into the environment.

        The user did not choose these addresses.
        """
        derived = data.get("derived") or {}
        return {key: value for key, value in data.items() if derived.get(key, ...) != value}

    @model_validator(mode="after")
    def _ports_differ(self) -> "Settings":
        ports = [getattr(self, name) for name in PORTS]
        if len(set(ports)) < len(ports):
            raise ValueError("two services have the same port: " + ", ".join(map(str, ports)))
        return self

    @property
    def run(self) -> Path:
        """Folder of process ids, locks and tokens."""
        return self.home / "run"

    @property
    def local_triton(self) -> Endpoint:
        """The Triton server of `millrace up`; its token is empty until the folder `run` exists."""
        return Endpoint(
            LOOPBACK,
            self.triton_http_port,
            self.triton_grpc_port,
            self.triton_metrics_port,
            token=load_token(self, "Triton") if os.path.isdir(self.run) else "",
        )

    def mlflow_uri(self) -> str:
        """Return the address of MLflow.

        It is the address that the user chose, otherwise that of the server that `millrace up` runs.
        Without a server it is the URI of the embedded SQLite database.
        """
        chosen, _ = split_login(self.mlflow_tracking_uri)
        return chosen or _running_address(self.run, "mlflow") or self.mlflow_database()

    @property
    def is_mlflow_local(self) -> bool:
        """Whether `millrace up` runs the MLflow server."""
        return not (self.mlflow_tracking_uri or "").startswith(("http://", "https://"))

    @property
    def keeps_ray(self) -> bool:
        """Whether `millrace up` keeps a Ray for the commands."""
        return self.ray_address == EMBEDDED and self.ray_idle > 0

    @property
    def has_mlflow_login(self) -> bool:
        """Whether the MLflow server of `millrace up` requires a login."""
        return self.mlflow_auth and self.is_mlflow_local

    def mlflow_database(self) -> str:
        """Return the URI of the embedded MLflow database."""
        return f"sqlite:///{self.home / 'mlflow.db'}"

    def prefect_api(self) -> str | None:
        """Return the URL of Prefect's API; None if there is no server.

        It is the URL that the user chose, otherwise that of the server that `millrace up` runs.
        """
        server = _running_address(self.run, "prefect")
        return self.prefect_api_url or (f"{server}/api" if server else None)

    def installation(self) -> Installation:
        """Return the folders and the present addresses of this installation.

        Raises:
            InputError: this code cannot read the layout of the home folder.
            WorkError: the version of the home folder cannot be read.
        """
        from millrace.flows.deployments.own_schedules import read_own  # which imports this

        try:
            check_version(self.home)
        except OSError as error:
            raise WorkError(
                f"the version of the Millrace home folder {self.home} cannot be read",
                seen=error.strerror or error,
                hint="fix its permissions, or set MILLRACE_HOME to another folder",
            ) from error
        return Installation(
            home=self.home,
            tracking_uri=self.mlflow_uri(),
            tables_uri=self.tables or str(self.home / "tables"),
            ray_address=self.ray_address,
            triton=self.triton or (self.local_triton,),
            vllm_python=self.vllm_python,
            pipelines=read_own(self.home).patterns(
                str(absolute(Path(each))) for each in self.pipelines
            ),
            trusted_signers=self.trusted_signers,
            arrivals_kept=ArrivalsKept(self.arrivals_hours, self.arrivals_mb),
            ingest_memory=int(self.ingest_memory_gib * 2**30) if self.ingest_memory_gib else None,
        )

    def warm_ray(self) -> WarmRay | None:
        """Return the Ray of a running `millrace up`; None if none is kept for this command."""
        warm = WarmRay(self.run, lambda: _is_ray_coming(self.run, warm.request))
        record = run_state.read_live(self.run) if self.keeps_ray else None
        return warm if record is not None and record.service("ray") is not None else None

    def pipeline_patterns(self) -> tuple[str, ...]:
        """Return the files and globs to schedule, absolute; the default file only if it exists."""
        patterns = [str(absolute(Path(pattern))) for pattern in self.pipelines]
        if self.pipelines == DEFAULT_PIPELINES:
            patterns = [each for each in patterns if Path(each).exists()]
        return tuple(patterns)

    def pipeline_files(self) -> tuple[Path, ...]:
        """Return the pipeline files to schedule, absolute and in order.

        Raises:
            InputError: a pattern in MILLRACE_PIPELINES matches no file.
        """
        found: list[Path] = []
        for pattern in self.pipelines:
            path = absolute(Path(pattern))
            matches = sorted(Path(path.anchor).glob(str(path.relative_to(path.anchor))))
            if not matches and self.pipelines != DEFAULT_PIPELINES:
                raise InputError(
                    "a pattern in MILLRACE_PIPELINES matches no file",
                    seen=pattern,
                    valid="paths or globs of pipeline files, comma separated",
                )
            found += [match for match in matches if match.is_file() and match not in found]
        return tuple(found)


def _is_ray_coming(run: Path, request: Path) -> bool:
    """Return whether the supervisor lives, and has started the service `ray` or will do so."""
    is_requested = request.exists()  # the supervisor removes the request after the start
    record = run_state.read_live(run)
    service = record.service("ray") if record else None
    return service is not None and (is_requested or service.pid is not None)


def _running_address(run: Path, name: str) -> str | None:
    record = run_state.read_live(run)
    service = record.service(name) if record else None
    return service.address if service else None


def load() -> Settings:
    """Read the settings from the environment.

    Raises:
        InputError: a value is not valid, or a variable's name looks like a misspelt setting.
    """
    _refuse_typos()
    if os.environ.get("PREFECT_API_URL") == "":  # Prefect would take it for an address
        del os.environ["PREFECT_API_URL"]
    try:
        return Settings()
    except ValidationError as error:
        first = error.errors()[0]
        name = variable(str(first["loc"][0])) if first["loc"] else "a port"
        seen = os.environ.get(name) if first["loc"] else first["msg"].removeprefix("Value error, ")
        if "@" in (seen or "") and name in LOGINS:
            seen = "an address with a login, which is not shown"
        raise InputError(
            f"{name} is not valid",
            seen=seen,
            valid=_describe_valid(name, first["msg"]),
            hint=f"unset {name} to use the default" if first["loc"] else None,
        ) from error


def variables() -> tuple[str, ...]:
    """Return the names of all environment variables that are read."""
    return tuple(variable(name) for name in Settings.model_fields)


def variable(field_or_alias: str) -> str:
    """Return the environment variable that sets a field."""
    field = Settings.model_fields.get(field_or_alias)
    if field is not None and isinstance(field.validation_alias, str):
        return field.validation_alias
    return field_or_alias if field is None else f"MILLRACE_{field_or_alias}".upper()


def _describe_valid(name: str, message: str) -> str:
    if name.endswith("_PORT"):
        return "a port, 1 to 65535"
    if name == "MILLRACE_TRITON":
        return (
            "host:http:grpc or host:http:grpc:metrics with the numbers of the ports, for example "
            "localhost:8000:8001; several servers comma separated"
        )
    return message.removeprefix("Value error, ") if name != "a port" else "seven different ports"


def _refuse_typos() -> None:
    known = variables()
    for name in sorted(os.environ):
        if not name.startswith("MILLRACE_") or name in known or name == MARK:
            continue
        close = get_close_matches(name, known, n=1, cutoff=0.85)
        if close:
            raise InputError(
                f"{name} is not a setting",
                seen=name,
                valid=", ".join(known),
                hint=f"did you mean {close[0]}?",
            )


def load_token(settings: Settings, owner: str) -> str:
    """Return the token of this home's Ray clusters, or the token of its Triton server.

    Each token is created once. Every local Ray cluster requires the Ray token from its clients.
    Triton requires the Triton token for changes.

    Args:
        settings: the settings of this home.
        owner: `Ray` or `Triton`.

    Raises:
        WorkError: the token cannot be read or written.
    """
    path = settings.run / f"{owner.lower()}.token"
    try:
        return read_or_create_secret(path, lambda: secrets.token_hex(32))
    except OSError as error:
        raise WorkError(
            f"the file with the token of {owner} cannot be read or written", seen=error
        ) from error
