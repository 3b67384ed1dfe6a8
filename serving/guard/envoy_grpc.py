"""The part of Envoy's configuration for gRPC: which methods pass, and the limits of HTTP/2.

Clients may call the methods that ask for inference, metadata, health and statistics. The methods
that change the server pass only with the header of the endpoint's token, whose value Triton checks:
so the guard's configuration has no secret.
"""

from millrace.models.common.installation import Endpoint
from millrace.serving.guard.envoy_routes import (
    Json,
    forward,
    header,
    refuse_foreign_pages,
    respond,
)
from millrace.serving.guard.token_names import TOKEN_METADATA

SERVICE = "inference.GRPCInferenceService"
CLIENT_METHODS = (
    "ModelInfer",
    "ModelStreamInfer",
    "ServerLive",
    "ServerReady",
    "ServerMetadata",
    "ModelReady",
    "ModelMetadata",
    "ModelConfig",
    "ModelStatistics",
)
MANAGING_METHODS = (
    "RepositoryIndex",
    "RepositoryModelLoad",
    "RepositoryModelUnload",
    "SystemSharedMemoryStatus",
    "SystemSharedMemoryRegister",
    "SystemSharedMemoryUnregister",
    "CudaSharedMemoryStatus",
    "CudaSharedMemoryRegister",
    "CudaSharedMemoryUnregister",
    "TraceSetting",
    "LogSettings",
)
"""The methods for which Triton requires the token (`RESTRICTED` in `millrace.serving.triton`)."""
MAX_HEADERS_KIB = 16
"""Limit of a request's metadata; gRPC's own, in Triton, is between 8 and 16 KiB."""
MAX_STREAMS = 4096
"""Most requests at a time, in all and on one connection."""
WINDOW_BYTES, CONNECTION_WINDOW_BYTES = 2**20, 16 * 2**20
"""Bytes that may be on their way of one request, and of all requests of a connection.

With HTTP/2's default of 64 KiB, a message of 64 MiB takes 1.5 times as long; larger windows did not
help.
"""
BUFFER_BYTES = 2**20
"""Bytes of a connection above which the guard stops reading; it passes messages on as they come."""


def grpc_routes(endpoint: Endpoint, cluster: str = "grpc") -> list[Json]:
    """Return the routes of gRPC to a cluster. Envoy uses the first one that matches."""
    managing = _methods(MANAGING_METHODS)
    token = [header(TOKEN_METADATA)] if endpoint.token else []
    return [
        *refuse_foreign_pages(endpoint.host, endpoint.grpc_port),
        forward(_methods(CLIENT_METHODS), cluster),
        forward(managing | {"headers": token}, cluster),
        respond(managing, 403, _RESTRICTED),
        respond({"prefix": "/", "grpc": {}}, 404, _NO_SUCH_METHOD),
        respond({"prefix": "/"}, 415, "this port answers only gRPC; HTTP has a port of its own"),
    ]


def _methods(names: tuple[str, ...]) -> Json:
    service = SERVICE.replace(".", r"\.")
    return {"safe_regex": {"regex": f"/{service}/({'|'.join(names)})"}, "grpc": {}}


def downstream_http2() -> Json:
    """Return the HTTP/2 settings for the clients' connections."""
    return _windows() | {"max_concurrent_streams": MAX_STREAMS}


def upstream_options(idle_seconds: int | None = None) -> Json:
    """Return the settings of Triton's cluster beside its address.

    Args:
        idle_seconds: when a connection without requests is closed; None: after an hour.
    """
    kind = "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
    options: Json = {"explicit_http_config": {"http2_protocol_options": _windows()}}
    if idle_seconds is not None:
        options["common_http_protocol_options"] = {"idle_timeout": f"{idle_seconds}s"}
    return {
        "per_connection_buffer_limit_bytes": BUFFER_BYTES,
        "typed_extension_protocol_options": {kind.partition("/")[2]: {"@type": kind} | options},
    }


def _windows() -> Json:
    return {
        "initial_stream_window_size": WINDOW_BYTES,
        "initial_connection_window_size": CONNECTION_WINDOW_BYTES,
    }


_RESTRICTED = (
    "this method is restricted to `millrace`, because it changes the server: it needs the token "
    f"of the server's home folder, in the metadata {TOKEN_METADATA}"
)
_NO_SUCH_METHOD = f"no such method for clients; valid are {', '.join(CLIENT_METHODS)} of {SERVICE}"
