"""The services of `millrace up` on this machine: each one's command, ports and health check.

`python -m millrace.flows.services.service_specs NAME` runs one of them in the foreground, for a
Procfile or a unit file.
"""

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from millrace.flows.console import exit_on_error
from millrace.flows.settings import LOOPBACK, MARK, Settings, load, variable
from millrace.flows.tool_variables import child_environment
from millrace.models.common.errors import InputError
from millrace.models.common.installation import Endpoint
from millrace.models.common.private_files import read_or_create_secret
from millrace.models.ray.fork_imports import TRAINING_IMPORTS
from millrace.models.ray.warm import SHARES, WarmRay, default_cpus
from millrace.serving.guard import envoy_process
from millrace.serving.guard.envoy_replicas import replica_endpoint
from millrace.serving.guard.sockets import http_socket
from millrace.serving.replicas import files as replica_files
from millrace.serving.triton import server as triton

LESS_MEMORY = {"MALLOC_ARENA_MAX": "2"}
"""glibc keeps freed memory in up to 8 arenas per core, which a server of many threads fills."""


@dataclass(frozen=True)
class SocketUrl:
    """A health check over a Unix socket: the socket, and the path of a GET request."""

    socket: Path
    path: str


@dataclass(frozen=True)
class Service:
    """One process to keep alive.

    Attributes:
        name: the name of the service and of its log file.
        argv: its command with arguments.
        log: the file that its output goes to.
        environment: its own environment variables, in addition to the variables of all services.
        is_isolated: whether it gets only its own environment variables.
        address: the address for users and clients; empty if it listens nowhere.
        grpc: the `host:port` where it serves gRPC too; empty if it does not.
        health: a URL or Unix socket that answers 200 when the service is healthy, or a file to
            whose first line the service writes its process id when it is ready.
        ports: the ports that it listens on, by the name of the setting that changes the port.
        grace: the seconds that it may take to stop.
        after: the services that must be healthy before its first start.
        patience: the seconds for which a service that was healthy may fail every health check
            before it is killed and restarted.
        keeps_children: whether its children may finish their work after it has died.
        request: a file whose existence asks for a start. The service may end by itself, and starts
            with the next request; None: it starts at once, and again whenever it ends.
        clean_up: a function that removes what an ended process left; called before every start
            and after the end.
        describe_use: a function that says how a running service is used; empty for most.
        replica: its number, of one of several Tritons; None for every other service.
        is_optional: whether it runs only while the load needs it.
    """

    name: str
    argv: tuple[str, ...]
    log: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    is_isolated: bool = False
    address: str = ""
    grpc: str = ""
    health: str | Path | SocketUrl = ""
    ports: Mapping[str, int] = field(default_factory=dict)
    grace: float = 10.0
    after: tuple[str, ...] = ()
    patience: float = 120.0
    keeps_children: bool = False
    request: Path | None = None
    clean_up: Callable[[], None] = lambda: None
    describe_use: Callable[[], str] = lambda: ""
    replica: int | None = None
    is_optional: bool = False


def local_services(settings: Settings) -> tuple[Service, ...]:
    """Return the services that run here; a server whose address was set runs elsewhere."""
    return (
        *((mlflow_service(settings),) if settings.is_mlflow_local else ()),
        *(() if settings.prefect_api_url else (prefect_service(settings),)),
        *(() if settings.triton else _triton_services(settings)),
        *((ray_service(settings),) if settings.keeps_ray else ()),
        deployments_service(settings),
        webhook_service(settings),
        openai_service(settings),
    )


def mlflow_service(settings: Settings) -> Service:
    """Return the MLflow server over the embedded database and artifacts folder."""
    return _python_server(
        settings,
        "mlflow",
        "millrace.flows.services.mlflow_server",
        environment={
            "MLFLOW_WEBHOOK_SECRET_ENCRYPTION_KEY": load_webhook_key(settings),
            # Seconds until MLflow notices a webhook that was added or changed.
            "MLFLOW_WEBHOOK_CACHE_TTL": "1",
            # Jobs (LLM judges, scorers) would add several processes of 200 MB.
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        },
    )


def prefect_service(settings: Settings) -> Service:
    """Return the Prefect server over the embedded database, with a login and an origin check.

    Prefect's CORS default lets every website that the user visits call the API; this server allows
    only its own UI.
    """
    port = settings.prefect_port
    return _python_server(
        settings,
        "prefect",
        "millrace.flows.services.prefect_server",
        health_path="/api/health",
        environment={
            "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": f"http://{LOOPBACK}:{port},http://localhost:{port}",
            # By default Prefect keeps its concurrency leases in memory, so a restart forgets which
            # run has the only slot of a deployment.
            "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": (
                "prefect.server.concurrency.lease_storage.filesystem"
            ),
            # They look after work pools and their workers, which Millrace does not use.
            "PREFECT_SERVER_SERVICES_FOREMAN_ENABLED": "false",
            "PREFECT_SERVER_SERVICES_CLEANUP_RECONCILER_ENABLED": "false",
            # They look for work every 5 s by default, each with queries of its own. What they find
            # is late or past its time by minutes.
            "PREFECT_SERVER_SERVICES_LATE_RUNS_LOOP_SECONDS": "30",
            "PREFECT_SERVER_SERVICES_PAUSE_EXPIRATIONS_LOOP_SECONDS": "30",
            "PREFECT_SERVER_EVENTS_PROACTIVE_GRANULARITY": "PT30S",
        },
    )


def _triton_services(settings: Settings) -> tuple[Service, ...]:
    if not settings.guard:
        return (triton_service(settings, settings.local_triton),)
    bounds = replica_files.read_bounds(settings.run)
    guard = guard_service(settings, bounds.max)
    if bounds.max == 1:
        return triton_service(settings, settings.local_triton), guard
    numbers = range(1, bounds.max + 1)
    return *(replica_service(settings, each, bounds.min) for each in numbers), guard


def replica_service(settings: Settings, number: int, fewest: int) -> Service:
    """Return one of several Tritons; the first has the name and the files of a single one.

    Args:
        settings: the home's settings.
        number: its number, from 1.
        fewest: how many always run.
    """
    server = triton_service(settings, replica_endpoint(settings.local_triton, number))
    return replace(
        server,
        name=server.name if number == 1 else f"triton-{number}",
        address=server.address if number == 1 else "",
        grpc=server.grpc if number == 1 else "",
        describe_use=partial(_state_of_replica, settings.run, number),
        replica=number,
        is_optional=number > fewest,
    )


def _state_of_replica(run: Path, number: int) -> str:
    fleet = replica_files.read_fleet(run)
    states = {each.number: each.state for each in fleet.replicas} if fleet else {}
    return states.get(number, "")


def triton_service(settings: Settings, endpoint: Endpoint) -> Service:
    """Return a Triton server over the model repository; it gets none of Millrace's variables."""
    installation = settings.installation()
    argv, environment = triton.command(installation, endpoint, guarded=settings.guard)
    ready = "/v2/health/ready"
    socket = installation.home / http_socket(endpoint)
    return Service(
        name="triton",
        argv=tuple(argv),
        log=triton.log_file(installation, endpoint),
        environment=environment,
        is_isolated=True,
        clean_up=partial(triton.clean_up, installation, endpoint),
        address=f"http://{endpoint.http}",
        grpc=endpoint.grpc,
        health=SocketUrl(socket, ready) if settings.guard else f"http://{endpoint.http}{ready}",
        ports={} if settings.guard else _triton_ports(endpoint),
        grace=15.0,
    )


def guard_service(settings: Settings, replicas: int = 1) -> Service:
    """Return the proxy on Triton's public ports; only checked requests pass it."""
    installation, endpoint = settings.installation(), settings.local_triton
    return Service(
        name="guard",
        argv=tuple(envoy_process.command(installation, endpoint, replicas)),
        log=envoy_process.log_file(installation, endpoint),
        is_isolated=True,
        address=f"http://{endpoint.http}",
        health=envoy_process.health_url(endpoint),
        ports=_triton_ports(endpoint),
    )


def _triton_ports(endpoint: Endpoint) -> dict[str, int]:
    return {
        "MILLRACE_TRITON_GRPC_PORT": endpoint.grpc_port,
        "MILLRACE_TRITON_HTTP_PORT": endpoint.http_port,
        "MILLRACE_TRITON_METRICS_PORT": endpoint.metrics_port,
    }


def webhook_service(settings: Settings) -> Service:
    """Return the receiver of MLflow's webhook, which releases at once."""
    return _python_server(
        settings,
        "webhook",
        "millrace.flows.triggers.webhook",
        # The receiver retries a failed release. A call to MLflow that is retried for minutes would
        # delay this.
        environment={"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2"},
        # The receiver releases as soon as it runs, and would report services that are still
        # starting as failures.
        after=("mlflow", "prefect", "triton", "guard"),
        # Its health check also fails when the watch in this process stalls, because then only the
        # webhook would request releases.
        patience=60.0,
    )


def webhook_url(settings: Settings) -> str:
    """Return the URL that MLflow posts to."""
    return f"{_local_address(settings, 'webhook')}/mlflow"


def openai_service(settings: Settings) -> Service:
    """Return the OpenAI-compatible server for the language models of the first Triton."""
    endpoint = settings.installation().triton[0]
    return _python_server(
        settings,
        "openai",
        "millrace.serving.openai_api.app",
        *("--home", str(settings.home), "--port", str(settings.openai_port)),
        *("--triton-host", endpoint.host, "--triton-grpc-port", str(endpoint.grpc_port)),
    )


def ray_service(settings: Settings) -> Service:
    """Return the Ray that the first use starts, and that stops when nothing has used it for long.

    It is stopped after the deployments, whose runs use it.
    """
    warm = WarmRay(settings.run)
    return Service(
        name="ray",
        log=_log_file(settings, "ray"),
        argv=_python_command(
            "millrace.models.ray.server",
            str(settings.run),
            str(SHARES * default_cpus(1)),
            f"{settings.ray_idle:g}",
            *TRAINING_IMPORTS,
        ),
        health=warm.ready,
        request=warm.request,
        clean_up=warm.forget,
        describe_use=warm.describe_use,
    )


def deployments_service(settings: Settings) -> Service:
    """Return the process that serves the scheduled deployments."""
    return Service(
        name="deployments",
        log=_log_file(settings, "deployments"),
        argv=_python_command("millrace.flows.deployments.serve"),
        environment={"PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "INFO"},
        health=deployments_ready_file(settings),
        grace=20.0,
        keeps_children=True,
    )


def deployments_ready_file(settings: Settings) -> Path:
    """Return the file that the deployments' process writes when it is ready."""
    return settings.run / "deployments.ready"


def load_webhook_key(settings: Settings) -> str:
    """Return the Fernet key with which MLflow encrypts the webhooks' secrets; created once.

    The key must outlive the server, because without it the encrypted secrets are lost.
    """
    from cryptography.fernet import Fernet

    return read_or_create_secret(
        settings.home / "webhook.key", lambda: Fernet.generate_key().decode()
    )


def _python_server(
    settings: Settings,
    name: str,
    module: str,
    *arguments: str,
    environment: Mapping[str, str] | None = None,
    health_path: str = "/health",
    after: tuple[str, ...] = (),
    patience: float = Service.patience,
) -> Service:
    """Return a server that runs a Python module and listens on the port in setting NAME_port."""
    address, field_name = _local_address(settings, name), f"{name}_port"
    return Service(
        name=name,
        log=_log_file(settings, name),
        argv=(*_python_command(module), *arguments),
        environment={**LESS_MEMORY, **(environment or {})},
        address=address,
        health=f"{address}{health_path}",
        ports={variable(field_name): getattr(settings, field_name)},
        after=after,
        patience=patience,
    )


def _python_command(module: str, *arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-P", "-m", module, *arguments)


def _local_address(settings: Settings, name: str) -> str:
    return f"http://{LOOPBACK}:{getattr(settings, f'{name}_port')}"


def _log_file(settings: Settings, name: str) -> Path:
    return settings.installation().logs / f"{name}.log"


def service_environment(settings: Settings, service: Service) -> dict[str, str]:
    """Return all environment variables of a service's process."""
    inherited = {} if service.is_isolated else child_environment(settings)
    return {**inherited, MARK: str(settings.home), **service.environment}


def find_service(settings: Settings, names: list[str]) -> Service:
    """Return the service with the name in `names`, which must have exactly one name.

    Raises:
        InputError: `names` does not have exactly one name, or the named service does not run here.
    """
    services = {service.name: service for service in local_services(settings)}
    if len(names) != 1 or names[0] not in services:
        raise InputError(
            "give the name of exactly one service", seen=" ".join(names), valid=", ".join(services)
        )
    return services[names[0]]


def unsupervised_environment(settings: Settings, service: Service) -> dict[str, str]:
    """Return the environment of a service that no supervisor starts.

    Without a supervisor there is no record from which releases and scheduled runs could read the
    servers' addresses. So the addresses are set as if the user had chosen them, and every child
    process inherits them.
    """
    addresses = {}
    if settings.mlflow_tracking_uri is None:
        addresses["MLFLOW_TRACKING_URI"] = _local_address(settings, "mlflow")
    if settings.prefect_api_url is None:
        addresses["PREFECT_API_URL"] = f"{_local_address(settings, 'prefect')}/api"
    environment = service_environment(settings, service)
    if service.name not in ("deployments", "webhook"):
        return environment
    # With this variable child processes would drop the login that the address of Prefect needs.
    del environment["MILLRACE_DERIVED"]
    return environment | addresses


def main(arguments: list[str] | None = None) -> None:
    """Replace this process by the service that is named, without a supervisor."""
    with exit_on_error():
        settings = load()
        settings.installation().prepared()
        replica_files.forget_bounds(settings.run)  # several Tritons need a supervisor
        service = find_service(settings, sys.argv[1:] if arguments is None else arguments)
        service.clean_up()
        environment = unsupervised_environment(settings, service)
        os.chdir(settings.home)  # as the supervisor does: socket paths are relative to the home
        os.execvpe(service.argv[0], service.argv, environment)  # noqa: S606


if __name__ == "__main__":
    main()
