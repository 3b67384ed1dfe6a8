"""Envoy's configuration: which requests are refused, and where all others are sent.

`guard_config` has no side effects; `json.dumps` turns its result into the file. Requests that can
be refused without their body are refused by Envoy's routes; `requests.lua` checks the bodies.
"""

import os
from pathlib import Path

from millrace.models.common.installation import Endpoint
from millrace.serving.guard import arrivals_log, envoy_grpc, envoy_replicas, envoy_stats
from millrace.serving.guard.envoy_clusters import MAX_CONNECTIONS, GuardSpec, clusters
from millrace.serving.guard.envoy_routes import (
    NO_LIMIT,
    TYPES,
    Json,
    forward,
    header,
    refuse_foreign_pages,
    respond,
    virtual_hosts,
)
from millrace.serving.guard.replica_names import authority_of, metrics_path

LUA_FILE = Path(__file__).with_name("requests.lua")
MAX_BODY_BYTES = 64 * 2**20
"""The largest body of an HTTP request that is accepted; gRPC accepts larger ones."""
MAX_PATH_BYTES, MAX_HEADERS_KIB = 2048, 8
"""Limits of Triton's HTTP server.

It may corrupt a path that arrives in two reads, and closes a connection whose headers exceed 8 KiB.
"""
MAX_HEAP_BYTES = 2 * 2**30
"""Memory limit of the guard. Close to the limit, the largest requests are ended, and new requests
are refused.
"""
HEALTH = "/guard/health"
HEADERS_SECONDS, REQUEST_SECONDS = 10, 120
"""How long a client may take to send the headers, and the whole request."""

_MODEL_PATH = r"/v2/models/[^/%]+(/versions/[0-9]+)?"
_MODEL_PATHS = _MODEL_PATH + r"(/(ready|config|stats))?"
_SERVER_PATHS = r"/v2(/health/(live|ready)|/models/stats)?"
_INFERENCE_PATHS = _MODEL_PATH + r"/(infer|generate|generate_stream)"


def guard_threads() -> int:
    """Return the number of Envoy worker threads: one for every two CPU cores, from 1 to 4.

    One thread can check the requests that keep two or more cores busy with inference.
    """
    return max(1, min(4, (os.cpu_count() or 1) // 2))


def guard_config(spec: GuardSpec) -> Json:
    """Return Envoy's whole configuration, with no administration port but a Unix socket."""
    endpoint = spec.endpoint
    http = _http_manager(spec, _http_routes(spec), _lua_filter())
    http |= arrivals_log.access_log(arrivals_log.HTTP, spec.arrivals)
    metrics = _http_manager(spec, _metrics_routes(spec), [])
    grpc = _grpc_manager(spec)
    grpc |= arrivals_log.access_log(arrivals_log.GRPC, spec.arrivals)
    listeners = [
        _listener("http", endpoint, endpoint.http_port, http, MAX_BODY_BYTES),
        _listener("metrics", endpoint, endpoint.metrics_port, metrics, MAX_BODY_BYTES),
        _listener("grpc", endpoint, endpoint.grpc_port, grpc, envoy_grpc.BUFFER_BYTES),
    ]
    return {
        "static_resources": {"listeners": listeners, "clusters": clusters(spec)},
        "admin": envoy_stats.admin(spec.admin),
        "stats_config": envoy_stats.stats_config(envoy_grpc.SERVICE),
        "overload_manager": _overload_manager(),
        "layered_runtime": {"layers": [{"name": "own", "static_layer": _LONG_EXPRESSIONS}]},
        **(_NODE if spec.replicas > 1 else {}),
    }


def _listener(name: str, endpoint: Endpoint, port: int, manager: Json, buffer: int) -> Json:
    kind = f"{TYPES}.filters.network.http_connection_manager.v3.HttpConnectionManager"
    typed = {"@type": kind, "stat_prefix": name} | manager
    return {
        "name": name,
        "address": {"socket_address": {"address": endpoint.host, "port_value": port}},
        "enable_reuse_port": False,  # a second guard on the port fails to start
        "per_connection_buffer_limit_bytes": buffer,
        "filter_chains": [{"filters": [{"name": "http", "typed_config": typed}]}],
    }


def _http_manager(spec: GuardSpec, routes: list[Json], filters: list[Json]) -> Json:
    return _manager(filters) | {
        "codec_type": "HTTP1",
        "max_request_headers_kb": MAX_HEADERS_KIB,
        "http_protocol_options": {
            "accept_http_10": True
        },  # the version that nginx sends by default
        "request_timeout": f"{REQUEST_SECONDS}s",
        "local_reply_config": {
            "mappers": [
                {"filter": _match_status(200), "body_format_override": _PLAIN_TEXT},
                {"filter": _match_status(431), "body": {"inline_string": _TOO_LARGE}},
                envoy_stats.clients_reply(),
                *(envoy_replicas.local_replies() if spec.replicas > 1 else ()),
            ],
            "body_format": {"json_format": {"error": "%LOCAL_REPLY_BODY%"}},
        },
        "route_config": {"virtual_hosts": virtual_hosts(spec.endpoint, routes, 421)},
    }


def _grpc_manager(spec: GuardSpec) -> Json:
    """Return the settings for gRPC, whose requests, unlike those of HTTP, may take any time."""
    endpoint, methods = spec.endpoint, (*envoy_grpc.CLIENT_METHODS, *envoy_grpc.MANAGING_METHODS)
    routes = _retried(envoy_grpc.grpc_routes(endpoint), spec)
    hosts = virtual_hosts(endpoint, routes, 403)
    replies: Json = {}
    if spec.replicas > 1:
        hosts += [_replica_host(endpoint, each + 1) for each in range(spec.replicas)]
        replies = {"local_reply_config": {"mappers": envoy_replicas.local_replies()}}
    counting = envoy_stats.grpc_stats_filter(envoy_grpc.SERVICE, methods)
    return (
        replies
        | _manager([*arrivals_log.grpc_filters(), counting])
        | {
            "codec_type": "HTTP2",
            "max_request_headers_kb": envoy_grpc.MAX_HEADERS_KIB,
            "http2_protocol_options": envoy_grpc.downstream_http2(),
            "request_timeout": NO_LIMIT,
            "route_config": {
                "virtual_hosts": hosts,
                "response_headers_to_add": arrivals_log.refusals(),
            },
        }
    )


def _replica_host(endpoint: Endpoint, number: int) -> Json:
    """Return the routes of the requests that are meant for one replica."""
    name = authority_of(number)
    return {"name": name, "domains": [name], "routes": envoy_grpc.grpc_routes(endpoint, name)}


def _retried(routes: list[Json], spec: GuardSpec) -> list[Json]:
    """Return the routes, with a second try of what no replica received if there are several."""
    for route in routes if spec.replicas > 1 else ():
        if "route" in route:
            route["route"]["retry_policy"] = envoy_replicas.retry_policy()
    return routes


def _manager(filters: list[Json]) -> Json:
    router: Json = {"@type": f"{TYPES}.filters.http.router.v3.Router"}
    router |= {"suppress_envoy_headers": True, "dynamic_stats": False}
    return {
        "server_header_transformation": "PASS_THROUGH",
        "generate_request_id": False,
        "normalize_path": True,
        "path_with_escaped_slashes_action": "KEEP_UNCHANGED",  # no route matches a % sign
        "strip_any_host_port": True,
        "stream_idle_timeout": NO_LIMIT,
        "request_headers_timeout": f"{HEADERS_SECONDS}s",
        "http_filters": [*filters, {"name": "router", "typed_config": router}],
    }


def _lua_filter() -> list[Json]:
    code: Json = {"@type": f"{TYPES}.filters.http.lua.v3.Lua"}
    code["default_source_code"] = {"filename": str(LUA_FILE)}
    return [{"name": "checks", "typed_config": code, "disabled": True}]


def _http_routes(spec: GuardSpec) -> list[Json]:
    """Return the HTTP routes. Envoy uses the first one that matches."""
    is_post = header(":method", exact="POST")
    is_encoded = header("content-encoding", exact="identity") | {"invert_match": True}
    routes = [
        *refuse_foreign_pages(spec.endpoint.host, spec.endpoint.http_port),
        _LONG_PATH,
        respond({"path": HEALTH}, 200, "the guard, the proxy in front of Triton, is healthy"),
        respond(
            {"prefix": "/", "headers": [header("content-encoding"), is_encoded]}, 415, _COMPRESSED
        ),
        _forward(
            {"safe_regex": {"regex": _INFERENCE_PATHS}, "headers": [is_post]}, "http", checked=True
        ),
        _forward({"safe_regex": {"regex": _SERVER_PATHS}, "headers": [_READ_METHODS]}, "http"),
        _forward({"safe_regex": {"regex": _MODEL_PATHS}, "headers": [_READ_METHODS]}, "http"),
        respond({"prefix": "/"}, 404, _NO_SUCH_PATH),
    ]
    return _retried(routes, spec)


def _metrics_routes(spec: GuardSpec) -> list[Json]:
    own = range(1, spec.replicas + 1) if spec.replicas > 1 else ()
    return [
        *refuse_foreign_pages(spec.endpoint.host, spec.endpoint.metrics_port),
        _LONG_PATH,
        _forward({"path": "/metrics", "headers": [_READ_METHODS]}, "metrics"),
        *map(_replica_metrics, own),
        envoy_stats.metrics_route(),
        envoy_stats.clients_route(),
        respond({"prefix": "/"}, 404, _NO_SUCH_METRICS),
    ]


def _replica_metrics(number: int) -> Json:
    match = {"path": metrics_path(number), "headers": [_READ_METHODS]}
    route = _forward(match, f"{authority_of(number)}-metrics")
    route["route"]["prefix_rewrite"] = metrics_path(None)
    return route


def _forward(match: Json, cluster: str, *, checked: bool = False) -> Json:
    route = forward(match, cluster)
    route["request_headers_to_remove"] = ["content-encoding"]  # here always `identity`
    if checked:
        route["typed_per_filter_config"] = {"checks": _LUA_ENABLED}
    return route


def _match_status(status: int) -> Json:
    """Return the filter that matches Envoy's own responses of a status."""
    value = {"default_value": status, "runtime_key": f"guard.{status}"}
    return {"status_code_filter": {"comparison": {"op": "EQ", "value": value}}}


def _match_longer_than(size: int) -> str:
    r"""Return a regex for more than `size` bytes; RE2 allows `\C` at most 1000 repetitions."""
    thousands, rest = divmod(size + 1, 1000)
    return r"\C{1000}" * thousands + rf"\C{{{rest}}}\C*"


def _overload_manager() -> Json:
    heap = "envoy.resource_monitors.fixed_heap"
    connections = "envoy.resource_monitors.global_downstream_max_connections"
    monitors = TYPES + ".resource_monitors"
    limits = (
        (heap, f"{monitors}.fixed_heap.v3.FixedHeapConfig", "max_heap_size_bytes", MAX_HEAP_BYTES),
        (
            *(connections, f"{monitors}.downstream_connections.v3.DownstreamConnectionsConfig"),
            *("max_active_downstream_connections", MAX_CONNECTIONS),
        ),
    )
    return {
        "resource_monitors": [
            {"name": name, "typed_config": {"@type": kind, key: most}}
            for name, kind, key, most in limits
        ],
        "actions": [
            {
                "name": "envoy.overload_actions.stop_accepting_requests",
                "triggers": [{"name": heap, "threshold": {"value": 0.95}}],
            },
            {
                "name": "envoy.overload_actions.reset_high_memory_stream",
                "triggers": [
                    {"name": heap, "scaled": {"scaling_threshold": 0.8, "saturation_threshold": 1}}
                ],
            },
        ],
        "buffer_factory_config": {"minimum_account_to_track_power_of_two": 20},
    }


_NODE = {"node": {"id": "guard", "cluster": "guard"}}
"""Envoy wants a name before it reads lists of replicas."""
_PLAIN_TEXT = {"text_format_source": {"inline_string": "%LOCAL_REPLY_BODY%\n"}}
_LUA_ENABLED: Json = {
    "@type": "type.googleapis.com/envoy.config.route.v3.FilterConfig",
    "config": {},
}
_READ_METHODS = header(":method", regex="GET|HEAD")
_COMPRESSED = "the request's body is compressed; send it uncompressed"
_NO_SUCH_PATH = (
    "no such path for clients; valid are GET /v2, /v2/health/live, /v2/health/ready, "
    "/v2/models/NAME with /ready, /config and /stats, and POST /v2/models/NAME/infer, /generate "
    "and /generate_stream; only `millrace` may use the paths that change the server"
)
_LONG_EXPRESSIONS = {"re2.max_program_size.error_level": MAX_PATH_BYTES + 100}
_LONG_PATH = respond(
    {"prefix": "/", "headers": [header(":path", regex=_match_longer_than(MAX_PATH_BYTES))]},
    414,
    f"the path is longer than {MAX_PATH_BYTES} bytes",
)
_NO_SUCH_METRICS = (
    f"this port offers only GET /metrics, {envoy_stats.METRICS_PATH} and {envoy_stats.CLIENTS_PATH}"
)
_TOO_LARGE = f"path and headers exceed {MAX_HEADERS_KIB} KiB, or there are more than 100 headers"
