"""The part of Envoy's configuration for metrics: requests by status, with latency histograms.

Envoy serves them at its administration interface. That is a Unix socket in MILLRACE_HOME, which
other users cannot open, and one route of the public metrics port leads to its one page of metrics.
"""

from millrace.serving.guard.envoy_routes import TYPES, Json, forward, header

METRICS_PATH, CLIENTS_PATH = "/metrics/guard", "/metrics/clients"
BUCKETS_MS = (0.5, 1, 2, 3, 5, 7, 10, 15, 20, 30, 50, 75, 100, 150, 200, 300, 500, 750)
BUCKETS_S = (1, 2, 3, 5, 10, 20, 30, 60, 120, 300, 600)
"""Upper bounds of the latency buckets. Envoy measures whole milliseconds, rounded down."""
_NOT_MADE = "these metrics are not made now; `millrace up` makes them, and tries again by itself"
_PAGE = "/stats/prometheus"
_SHOWN = (
    r"http\.(http|grpc)\.downstream_rq_(time|total|active|[1-5]xx)",
    r"cluster\.grpc\.grpc\..*",
)
_LABELS = ("envoy.http_conn_manager_prefix", "envoy.response_code_class", "envoy.cluster_name")
"""Labels of Envoy's own."""


def admin(socket: str) -> Json:
    """Return the administration interface.

    Args:
        socket: its Unix socket, relative to the folder that Envoy runs in.
    """
    return {"address": {"pipe": {"path": socket, "mode": 0o600}}}


def metrics_route() -> Json:
    """Return the route to the metrics; a query, which the interface would read, does not match."""
    only = [header(":path", exact=METRICS_PATH), header(":method", exact="GET")]
    route = forward({"path": METRICS_PATH, "headers": only}, "admin")
    route["route"]["prefix_rewrite"] = _PAGE
    return route


def clients_route() -> Json:
    """Return the route to the metrics of what clients see, which `millrace up` makes."""
    only = [header(":path", exact=CLIENTS_PATH), header(":method", exact="GET")]
    return forward({"path": CLIENTS_PATH, "headers": only}, "clients")


def clients_reply() -> Json:
    """Return the text of the error where nothing makes the metrics of what clients see.

    Envoy's flags: UF, no connection could be made; UC, it ended; URX, nor a second one.
    """
    is_asked = {"header_filter": {"header": header(":path", exact=CLIENTS_PATH)}}
    fails = {"response_flag_filter": {"flags": ["UF", "UC", "URX"]}}
    return {
        "filter": {"and_filter": {"filters": [is_asked, fails]}},
        "body": {"inline_string": _NOT_MADE},
    }


def stats_config(service: str) -> Json:
    """Return which metrics Envoy keeps, their labels, and the buckets of its histograms.

    Envoy's own label of a gRPC service has no dots, so with them the method would be in the name.
    """
    buckets = [*BUCKETS_MS, *(1000 * each for each in BUCKETS_S)]
    shown = [{"safe_regex": {"regex": each}} for each in _SHOWN]
    every_histogram = {"match": {"safe_regex": {"regex": ".*"}}, "buckets": buckets}
    escaped = service.replace(".", r"\.")
    own = {
        "envoy.grpc_bridge_service": rf"^cluster\.grpc\.grpc\.(({escaped})\.)",
        "envoy.grpc_bridge_method": rf"^cluster\.grpc\.grpc\.{escaped}\.((\w+)\.)",
    }
    return {
        "stats_matcher": {"inclusion_list": {"patterns": shown}},
        "histogram_bucket_settings": [every_histogram],
        "use_all_default_tags": False,
        "stats_tags": [
            *({"tag_name": name} for name in _LABELS),
            *({"tag_name": name, "regex": regex} for name, regex in own.items()),
        ],
    }


def grpc_stats_filter(service: str, methods: tuple[str, ...]) -> Json:
    """Return the filter that counts the statuses of methods, with a latency histogram of each."""
    named = {"services": [{"name": service, "method_names": list(methods)}]}
    typed: Json = {"@type": f"{TYPES}.filters.http.grpc_stats.v3.FilterConfig"}
    typed |= {"individual_method_stats_allowlist": named, "enable_upstream_stats": True}
    return {"name": "statistics", "typed_config": typed}
