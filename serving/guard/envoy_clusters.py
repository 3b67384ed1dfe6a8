"""The part of Envoy's configuration for the Tritons behind the guard: where requests are sent."""

from dataclasses import dataclass

from millrace.models.common.installation import Endpoint
from millrace.serving.guard import envoy_grpc, envoy_replicas
from millrace.serving.guard.envoy_routes import Json
from millrace.serving.guard.replica_names import authority_of
from millrace.serving.guard.sockets import grpc_socket, metrics_socket

MAX_CONNECTIONS = 4096
IDLE_SECONDS = 1
"""When the connection for what is meant for one replica alone is closed: Triton, told to end, waits
ten seconds for a client that stays connected.
"""


@dataclass(frozen=True)
class GuardSpec:
    """Where a guard listens and where it forwards requests to.

    Attributes:
        endpoint: the public ports; the guard listens on all of them.
        http: the Unix socket of Triton's HTTP server, relative to the folder that Envoy runs in.
        grpc: the Unix socket of Triton's gRPC server, relative to the same folder.
        metrics: the Unix socket of Triton's metrics, relative to the same folder.
        admin: the Unix socket of the guard's own administration, relative to the same folder.
        clients: the Unix socket with the metrics of what clients see, relative to the same folder.
        arrivals: the file that arrivals are recorded in, relative to the same folder; None: they
            are not recorded.
        replicas: the most Tritons behind this guard; with one, they are not listed in files.
    """

    endpoint: Endpoint
    http: str
    grpc: str
    metrics: str
    admin: str
    clients: str
    arrivals: str | None = None
    replicas: int = 1


def clusters(spec: GuardSpec) -> list[Json]:
    """Return the servers that requests are sent to.

    One Triton has fixed addresses. Of several, those of `http` and `grpc` come from files, and each
    has clusters of its own for what is meant for it alone: releases, and its metrics.
    """
    own = [_cluster("metrics", spec.metrics), _cluster("admin", spec.admin)]
    own.append(_cluster("clients", spec.clients))
    options = envoy_grpc.upstream_options()
    if spec.replicas == 1:
        return [_cluster("http", spec.http), *own, _cluster("grpc", spec.grpc) | options]
    for number in range(1, spec.replicas + 1):
        name, replica = authority_of(number), envoy_replicas.replica_endpoint(spec.endpoint, number)
        single = envoy_grpc.upstream_options(IDLE_SECONDS)
        own.append(_cluster(name, grpc_socket(replica)) | single)
        own.append(_cluster(f"{name}-metrics", metrics_socket(replica)))
    return [_watched("http", spec), *own, _watched("grpc", spec) | options]


def _cluster(name: str, socket: str) -> Json:
    hosts = [{"endpoint": {"address": envoy_replicas.pipe(socket)}}]
    assigned = {"cluster_name": name, "endpoints": [{"lb_endpoints": hosts}]}
    return _named(name) | {"load_assignment": assigned}


def _watched(name: str, spec: GuardSpec) -> Json:
    return _named(name) | envoy_replicas.watched_cluster(spec.endpoint, name)


def _named(name: str) -> Json:
    limited = ("connections", "pending_requests", "requests", "retries")
    limits = {f"max_{each}": MAX_CONNECTIONS for each in limited}
    return {
        "name": name,
        "connect_timeout": "5s",
        "circuit_breakers": {"thresholds": [limits]},
    }
