"""How many requests each replica works on, as Envoy's administration says."""

import json
from collections import Counter
from collections.abc import Mapping
from http.client import HTTPException
from pathlib import Path
from typing import Any

from millrace.models.common.installation import Endpoint
from millrace.serving.guard.envoy_replicas import CLUSTERS
from millrace.serving.guard.sockets import SocketConnection, guard_socket

PAGE = "/clusters?format=json"
READ_SECONDS = 2.0
ACTIVE = "rq_active"


def read_in_flight(home: Path, endpoint: Endpoint) -> Mapping[str, int] | None:
    """Return the requests in flight by the path of a replica's socket; None if that is not known.

    Args:
        home: MILLRACE_HOME.
        endpoint: the guard's address.
    """
    connection = SocketConnection(home / guard_socket(endpoint), READ_SECONDS)
    try:
        connection.request("GET", PAGE)
        answer = connection.getresponse()
        return parse_in_flight(answer.read().decode()) if answer.status == 200 else None
    except (OSError, HTTPException, ValueError, KeyError, TypeError):
        return None
    finally:
        connection.close()


def parse_in_flight(text: str) -> Mapping[str, int]:
    """Return the requests in flight by socket, from Envoy's page of its clusters.

    Raises:
        ValueError, KeyError, TypeError: the text is not such a page.
    """
    found: Counter[str] = Counter()
    for cluster in json.loads(text)["cluster_statuses"]:
        if cluster["name"] in CLUSTERS:
            for host in cluster.get("host_statuses", ()):
                found[host["address"]["pipe"]["path"]] += _active(host)
    return found


def _active(host: Mapping[str, Any]) -> int:
    """Return a host's active requests; Envoy leaves out the value 0."""
    values = (each.get("value", 0) for each in host["stats"] if each["name"] == ACTIVE)
    return int(next(values))
