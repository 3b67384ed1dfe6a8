"""The part of Envoy's configuration for several Tritons behind one address.

Envoy reads the addresses of the replicas from two files, one for HTTP and one for gRPC, and again
whenever a file is replaced (`path_config_source`); so replicas come and go without a restart. A
replica that leaves is first listed as draining: it gets no new request, and ends those that it has.

A request is sent a second time, to another replica, only if no replica has received it: when the
connection could not be made, or was closed before the request was sent. So a replica that is killed
costs at most the requests that it was working on, and these get an error that says so.
"""

import json
from collections.abc import Collection
from dataclasses import dataclass, replace

from millrace.models.common.installation import Endpoint
from millrace.serving.guard.envoy_routes import Json
from millrace.serving.guard.sockets import grpc_socket, http_socket

CLUSTERS = ("http", "grpc")
CHECK_SECONDS, ANSWER_SECONDS, FAILURES = 2, 3, 2
"""Envoy's own health check of a replica: how often, how long it may take, and how often it may fail
in a row. A replica that is frozen gets no requests after about ten seconds."""
ENDED = (
    "the replica of Triton that worked on this request has ended; the request may be sent again, "
    "and the other replicas serve"
)
NONE_READY = "no replica of Triton is ready; `millrace status` says why"
_LIST = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"


@dataclass(frozen=True)
class Members:
    """The replicas that the guard knows, by number.

    Attributes:
        serving: those that get requests.
        draining: those that get none, and end those that they have.
    """

    serving: Collection[int] = ()
    draining: Collection[int] = ()


def replica_endpoint(endpoint: Endpoint, replica: int) -> Endpoint:
    """Return the address of one replica behind the guard at `endpoint`."""
    return replace(endpoint, replica=replica)


def endpoints_file(endpoint: Endpoint, cluster: str) -> str:
    """Return the path of the file that lists a cluster's replicas, relative to MILLRACE_HOME."""
    return f"run/guard-{endpoint.http_port}.{cluster}.json"


def endpoints_text(endpoint: Endpoint, cluster: str, members: Members) -> str:
    """Return the text of the file that lists a cluster's replicas."""
    listed = [
        *((number, "HEALTHY") for number in sorted(members.serving)),
        *((number, "DRAINING") for number in sorted(members.draining)),
    ]
    hosts = [
        {"endpoint": {"address": pipe(_socket(endpoint, cluster, number))}, "health_status": status}
        for number, status in listed
    ]
    resource = {"@type": _LIST, "cluster_name": cluster, "endpoints": [{"lb_endpoints": hosts}]}
    return json.dumps({"resources": [resource]}, indent=1) + "\n"


def pipe(path: str) -> Json:
    """Return the address of a Unix socket."""
    return {"pipe": {"path": path}}


def watched_cluster(endpoint: Endpoint, cluster: str) -> Json:
    """Return the settings of a cluster whose replicas are in a file: where, and which get requests.

    If every replica fails Envoy's health check, all of them get requests, since a machine under
    full load may answer the check late.
    """
    source = {"path_config_source": {"path": endpoints_file(endpoint, cluster)}}
    check = {
        "interval": f"{CHECK_SECONDS}s",
        "no_traffic_interval": f"{CHECK_SECONDS}s",
        "timeout": f"{ANSWER_SECONDS}s",
        "unhealthy_threshold": FAILURES,
        "healthy_threshold": 1,
    }
    kind = (
        {"grpc_health_check": {}}
        if cluster == "grpc"
        else {"http_health_check": {"path": "/v2/health/ready", "host": "localhost"}}
    )
    return {
        "type": "EDS",
        "eds_cluster_config": {"service_name": cluster, "eds_config": source},
        "lb_policy": "LEAST_REQUEST",
        "health_checks": [check | kind],
        "outlier_detection": _leave_out_the_dead(),
        "ignore_health_on_host_removal": True,
        "common_lb_config": {"healthy_panic_threshold": {"value": 1}},
    }


def _leave_out_the_dead() -> Json:
    """Return when a replica gets no requests for a while: after failed connections, at once.

    Errors that a replica answers with are not counted. Without this, a replica that was killed
    would attract requests, since it has the fewest in flight.
    """
    counted = {
        "consecutive_local_origin_failure": 2,
        "enforcing_consecutive_local_origin_failure": 100,
    }
    others = ("consecutive_5xx", "consecutive_gateway_failure", "success_rate")
    ignored = {f"enforcing_{name}": 0 for name in (*others, "local_origin_success_rate")}
    return {
        "split_external_local_origin_errors": True,
        "base_ejection_time": "5s",
        "max_ejection_percent": 100,
        **counted,
        **ignored,
    }


def retry_policy() -> Json:
    """Return which requests are sent to another replica: only those that no replica received."""
    return {
        "retry_on": "connect-failure,refused-stream,reset-before-request",
        "num_retries": 2,
        "retry_host_predicate": [
            {
                "name": "others",
                "typed_config": {
                    "@type": "type.googleapis.com/envoy.extensions.retry.host."
                    "previous_hosts.v3.PreviousHostsPredicate"
                },
            }
        ],
        "host_selection_retry_max_attempts": 20,
    }


def local_replies() -> list[Json]:
    """Return the texts of the errors that clients get when a replica ended, and when none is ready.

    Envoy's flags: UC, the connection ended; UR, the stream was reset; UF, no connection could be
    made; UH, no replica is known; URX, no other replica took the request.
    """
    return [
        {"filter": _flags("UC", "UR"), "body": {"inline_string": ENDED}},
        {"filter": _flags("UF", "UH", "URX"), "body": {"inline_string": NONE_READY}},
    ]


def _flags(*flags: str) -> Json:
    return {"response_flag_filter": {"flags": list(flags)}}


def _socket(endpoint: Endpoint, cluster: str, number: int) -> str:
    of_cluster = grpc_socket if cluster == "grpc" else http_socket
    return of_cluster(replica_endpoint(endpoint, number))
