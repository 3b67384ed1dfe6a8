"""What `millrace up` runs on this machine: each service as a command, its ports and its health.

`python -m millrace.flows.services.service_specs NAME` runs one of them in the foreground, for a
Procfile or a unit file.
"""

import base64
import os
import secrets
import sys
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.client import HTTPException
from pathlib import Path

from millrace.flows.console import print_error
from millrace.flows.environment import child_environment
from millrace.flows.settings import LOOPBACK, MARK, Settings, load
from millrace.models.common.errors import InputError, MillraceError
from millrace.models.common.installation import Endpoint
from millrace.models.common.private_files import read_or_create_secret


@dataclass(frozen=True)
class Port:
    """A port of this machine, and the setting that moves it."""

    number: int
    setting: str


@dataclass(frozen=True)
class SocketUrl:
    """What is asked of a server that listens on a Unix socket."""

    socket: Path
    path: str


@dataclass(frozen=True)
class Service:
    """One process to keep alive.

    Attributes:
        name: its name, which is also that of its log.
        argv: its command.
        log: where its output goes.
        environment: what it needs beside the environment of every service.
        isolated: whether `environment` is all that it gets.
        address: where a person or a client reaches it; empty when it listens nowhere.
        grpc: the `host:port` where it takes gRPC too; empty if it does not.
        health: a URL that answers 200 when it is well, one of a Unix socket likewise, or the file
            that it writes when it is ready, holding its process id.
        ports: the ports that it takes.
        grace: seconds that it may take to stop.
        after: services that its first start waits for, so that it finds them well.
        patience: seconds for which it may fail every look at its health before it is killed and
            started anew, if it was well before.
        keeps_children: whether children may finish their work after it has died.
        clean_up: removes what an ended process left; called before every start and after the end.
    """

    name: str
    argv: tuple[str, ...]
    log: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    isolated: bool = False
    address: str = ""
    grpc: str = ""
    health: str | Path | SocketUrl = ""
    ports: tuple[Port, ...] = ()
    grace: float = 10.0
    after: tuple[str, ...] = ()
    patience: float = 120.0
    keeps_children: bool = False
    clean_up: Callable[[], None] = lambda: None


def local(settings: Settings) -> tuple[Service, ...]:
    """Return the services that run here: a part that was given another address does not."""
    return (
        *((mlflow_server(settings),) if settings.runs_mlflow else ()),
        *(() if settings.prefect_api_url else (prefect_server(settings),)),
        *(() if settings.triton else _own_triton(settings)),
        deployments(settings),
        webhook(settings),
        openai(settings),
    )


def mlflow_server(settings: Settings) -> Service:
    """Return the MLflow server over the embedded database and artifacts folder."""
    address = f"http://{LOOPBACK}:{settings.mlflow_port}"
    return Service(
        name="mlflow",
        log=_log(settings, "mlflow"),
        argv=(sys.executable, "-P", "-m", "millrace.flows.services.mlflow_server"),
        environment={
            "MLFLOW_WEBHOOK_SECRET_ENCRYPTION_KEY": webhook_key(settings),
            # Seconds for which it takes a webhook for not registered, or registered as before.
            "MLFLOW_WEBHOOK_CACHE_TTL": "1",
            # Jobs (LLM judges, scorers) would add several processes of 200 MB.
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        },
        address=address,
        health=f"{address}/health",
        ports=(Port(settings.mlflow_port, "MILLRACE_MLFLOW_PORT"),),
    )


def prefect_server(settings: Settings) -> Service:
    """Return the Prefect server over the embedded database, with a login and our guard before it.

    Its CORS default lets every website that the user visits call the API; ours only its own UI.
    """
    port = settings.prefect_port
    address = f"http://{LOOPBACK}:{port}"
    return Service(
        name="prefect",
        log=_log(settings, "prefect"),
        argv=(
            *(sys.executable, "-P", "-m", "millrace.flows.services.prefect_server"),
            *("--host", LOOPBACK, "--port", str(port)),
        ),
        environment={
            "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": f"{address},http://localhost:{port}",
            # In memory, the default, a restart forgets who holds a deployment's only slot.
            "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": (
                "prefect.server.concurrency.lease_storage.filesystem"
            ),
        },
        address=address,
        health=f"{address}/api/health",
        ports=(Port(port, "MILLRACE_PREFECT_PORT"),),
    )


def _own_triton(settings: Settings) -> tuple[Service, ...]:
    server = triton_server(settings)
    return (server, triton_guard(settings)) if settings.guard else (server,)


def triton_server(settings: Settings) -> Service:
    """Return the Triton server over the model repository; it sees none of our variables."""
    from millrace.serving import guard
    from millrace.serving.triton import server as triton  # 0.3 s, which `status` need not wait

    places, endpoint = settings.places(), settings.local_triton
    argv, environment = triton.command(places, endpoint, guarded=settings.guard)
    ready = "/v2/health/ready"
    socket = places.home / guard.http_socket(endpoint)
    return Service(
        name="triton",
        argv=tuple(argv),
        log=triton.log_file(places, endpoint),
        environment=environment,
        isolated=True,
        clean_up=partial(triton.clean_up, places, endpoint),
        address=f"http://{endpoint.http}",
        grpc=endpoint.grpc,
        health=SocketUrl(socket, ready) if settings.guard else f"http://{endpoint.http}{ready}",
        ports=(
            Port(endpoint.grpc_port, "MILLRACE_TRITON_GRPC_PORT"),
            *(() if settings.guard else _http_ports(endpoint)),
        ),
        grace=15.0,
    )


def triton_guard(settings: Settings) -> Service:
    """Return the proxy that takes Triton's public HTTP and lets only checked requests through."""
    from millrace.serving import guard

    places, endpoint = settings.places(), settings.local_triton
    return Service(
        name="guard",
        argv=tuple(guard.command(places, endpoint)),
        log=guard.log_file(places, endpoint),
        isolated=True,
        address=f"http://{endpoint.http}",
        health=guard.health_url(endpoint),
        ports=_http_ports(endpoint),
    )


def _http_ports(endpoint: Endpoint) -> tuple[Port, ...]:
    return (
        Port(endpoint.http_port, "MILLRACE_TRITON_HTTP_PORT"),
        Port(endpoint.metrics_port, "MILLRACE_TRITON_METRICS_PORT"),
    )


def webhook(settings: Settings) -> Service:
    """Return the receiver of MLflow's webhook, which releases at once."""
    address = webhook_address(settings)
    return Service(
        name="webhook",
        log=_log(settings, "webhook"),
        argv=(sys.executable, "-P", "-m", "millrace.flows.triggers.webhook"),
        # It tries a whole release again; a call that is tried for minutes would hold that up.
        environment={"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2"},
        address=address,
        health=f"{address}/health",
        ports=(Port(settings.webhook_port, "MILLRACE_WEBHOOK_PORT"),),
        # It releases as soon as it runs, and would tell as faults what has only not started yet.
        after=("mlflow", "prefect", "triton", "guard"),
        # Its own health says when it looks no more: nothing else asks for releases then.
        patience=60.0,
    )


def webhook_address(settings: Settings) -> str:
    """Return where MLflow reaches the receiver of its webhook."""
    return f"http://{LOOPBACK}:{settings.webhook_port}"


def webhook_url(settings: Settings) -> str:
    """Return what MLflow posts to."""
    return f"{webhook_address(settings)}/mlflow"


def openai(settings: Settings) -> Service:
    """Return the door in OpenAI's form to the language models of the first Triton."""
    port, endpoint = settings.openai_port, settings.places().triton[0]
    address = f"http://{LOOPBACK}:{port}"
    return Service(
        name="openai",
        log=_log(settings, "openai"),
        argv=(
            *(sys.executable, "-P", "-m", "millrace.serving.openai_api"),
            *("--home", str(settings.home), "--port", str(port)),
            *("--triton-host", endpoint.host, "--triton-grpc-port", str(endpoint.grpc_port)),
        ),
        address=address,
        health=f"{address}/health",
        ports=(Port(port, "MILLRACE_OPENAI_PORT"),),
    )


def deployments(settings: Settings) -> Service:
    """Return the process that serves the scheduled deployments."""
    return Service(
        name="deployments",
        log=_log(settings, "deployments"),
        argv=(sys.executable, "-P", "-m", "millrace.flows.deployments.serve"),
        environment={"PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "INFO"},
        health=deployments_ready_file(settings),
        grace=20.0,
        keeps_children=True,
    )


def deployments_ready_file(settings: Settings) -> Path:
    """Return the file in which the deployments' process says that it is ready."""
    return settings.run / "deployments.ready"


def webhook_key(settings: Settings) -> str:
    """Return the key under which MLflow keeps the webhooks' secrets: a Fernet key, made once.

    It must outlive the server: what is encrypted under a lost key is lost.
    """

    def fernet_key() -> str:
        return base64.urlsafe_b64encode(secrets.token_bytes(32)).decode()

    return read_or_create_secret(settings.home / "webhook.key", fernet_key)


def environment(settings: Settings, service: Service) -> dict[str, str]:
    """Return the whole environment of a service's process."""
    ours = {} if service.isolated else child_environment(settings)
    return {**ours, MARK: str(settings.home), **service.environment}


def healthy(service: Service, pid: int | None, timeout: float = 2.0) -> bool:
    """Return whether the service, run by process `pid`, says within `timeout` s that it is well."""
    if isinstance(service.health, Path):
        try:
            return service.health.read_text().strip() == str(pid)
        except OSError:
            return False
    if isinstance(service.health, SocketUrl):
        from millrace.serving.guard import socket_answers

        return socket_answers(service.health.socket, service.health.path, timeout)
    return answers(service.health, timeout)


def answers(url: str, timeout: float = 2.0) -> bool:
    """Return whether a GET of `url` answers 200, never through a proxy."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=timeout) as response:
            return bool(response.status == 200)
    except (OSError, ValueError, HTTPException):
        return False


def _log(settings: Settings, name: str) -> Path:
    return settings.places().logs / f"{name}.log"


def named(settings: Settings, names: list[str]) -> Service:
    """Return the one service that is named.

    Raises:
        InputError: none is, or more than one, or one that does not run here.
    """
    services = {service.name: service for service in local(settings)}
    if len(names) != 1 or names[0] not in services:
        raise InputError("name one service", seen=" ".join(names), valid=", ".join(services))
    return services[names[0]]


def unsupervised_environment(settings: Settings, service: Service) -> dict[str, str]:
    """Return the environment of a service that no supervisor starts.

    There is no record of what runs, in which the releases and the scheduled runs would find the
    servers; so their addresses are given as chosen ones, which every process below takes over.
    """
    addresses = {}
    if settings.mlflow_tracking_uri is None:
        addresses["MLFLOW_TRACKING_URI"] = f"http://{LOOPBACK}:{settings.mlflow_port}"
    if settings.prefect_api_url is None:
        addresses["PREFECT_API_URL"] = f"http://{LOOPBACK}:{settings.prefect_port}/api"
    whole = environment(settings, service)
    if service.name not in ("deployments", "webhook"):
        return whole
    # The login goes with the address: nothing below may take it for one that came unasked.
    return {name: value for name, value in whole.items() if name != "MILLRACE_DERIVED"} | addresses


@contextmanager
def errors_told() -> Iterator[None]:
    """End this process with an error line, not a stack trace, at what a user is meant to read."""
    try:
        yield
    except MillraceError as error:
        print_error(error, as_json=False)
        sys.exit(error.exit_code)


def main(arguments: list[str] | None = None) -> None:
    """Become the service that is named: nothing supervises it but what started it."""
    with errors_told():
        settings = load()
        settings.places().prepared()
        service = named(settings, sys.argv[1:] if arguments is None else arguments)
        service.clean_up()
        whole = unsupervised_environment(settings, service)
        os.chdir(settings.home)  # as the supervisor does; paths of sockets start from there
        os.execvpe(service.argv[0], service.argv, whole)  # noqa: S606


if __name__ == "__main__":
    main()
