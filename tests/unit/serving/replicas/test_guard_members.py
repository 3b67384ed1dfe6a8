"""What the guard is told about several replicas behind one address."""

import json
from dataclasses import replace

from millrace.models.common.installation import Endpoint
from millrace.serving.guard.envoy_clusters import GuardSpec
from millrace.serving.guard.envoy_config import guard_config
from millrace.serving.guard.envoy_replicas import Members, endpoints_text, replica_endpoint
from millrace.serving.guard.in_flight import parse_in_flight
from millrace.serving.guard.sockets import grpc_socket, http_socket
from millrace.serving.triton.channel import channel_options

GUARD = Endpoint("127.0.0.1", 8000, 8001, 8002, token="t")
ONE = GuardSpec(GUARD, "http", "grpc", "metrics", "admin", "clients")
THREE = replace(ONE, replicas=3)


def clusters_of(spec: GuardSpec) -> dict[str, dict]:
    return {each["name"]: each for each in guard_config(spec)["static_resources"]["clusters"]}


def test_a_single_triton_has_fixed_addresses_and_no_second_try() -> None:
    assert set(clusters_of(ONE)) == {"http", "grpc", "metrics", "admin", "clients"}
    text = json.dumps(guard_config(ONE))
    assert "retry_policy" not in text
    assert "health_checks" not in text
    assert "replica" not in text


def test_of_several_each_has_its_own_clusters_and_both_ways_are_checked() -> None:
    found = clusters_of(THREE)
    own = {f"replica-{number}" for number in (1, 2, 3)}
    assert own | {f"{each}-metrics" for each in own} < found.keys()
    for name in ("http", "grpc"):
        assert found[name]["type"] == "EDS"
        assert found[name]["health_checks"]
        assert "load_assignment" not in found[name]


def test_only_what_no_replica_received_is_sent_again() -> None:
    text = json.dumps(guard_config(THREE))
    assert '"retry_on": "connect-failure,refused-stream,reset-before-request"' in text
    assert "5xx" not in text.replace("consecutive_5xx", "").replace("[1-5]xx", "")


def test_who_drains_is_listed_apart_from_who_serves() -> None:
    (listed,) = json.loads(endpoints_text(GUARD, "grpc", Members({2, 1}, {3})))["resources"]
    hosts = listed["endpoints"][0]["lb_endpoints"]
    found = [(each["endpoint"]["address"]["pipe"]["path"], each["health_status"]) for each in hosts]
    assert found == [
        ("run/triton-8001.grpc:8001", "HEALTHY"),
        ("run/triton-8001r2.grpc:8001", "HEALTHY"),
        ("run/triton-8001r3.grpc:8001", "DRAINING"),
    ]


def test_the_first_replica_has_the_sockets_of_a_single_triton() -> None:
    assert http_socket(replica_endpoint(GUARD, 1)) == http_socket(GUARD)
    assert grpc_socket(replica_endpoint(GUARD, 2)) != grpc_socket(GUARD)


def test_a_connection_to_one_replica_is_named() -> None:
    assert ("grpc.default_authority", "replica-2") in channel_options(replica_endpoint(GUARD, 2))
    assert "grpc.default_authority" not in dict(channel_options(GUARD))


def test_a_replica_has_a_name_of_its_own_and_keeps_the_token() -> None:
    second = replica_endpoint(GUARD, 2)
    assert (str(GUARD), str(second)) == ("127.0.0.1:8001", "127.0.0.1:8001 replica 2")
    assert second.token == "t"
    assert second != GUARD
    assert second.as_json()["replica"] == 2
    assert "replica" not in GUARD.as_json()


def test_requests_in_flight_are_counted_by_socket() -> None:
    def host(path: str, *stats: dict) -> dict:
        return {"address": {"pipe": {"path": path}}, "stats": list(stats)}

    active, none = {"name": "rq_active", "value": "2"}, {"name": "rq_active"}
    statuses = [
        {"name": "grpc", "host_statuses": [host("a", {"name": "rq_total"}, active)]},
        {"name": "http", "host_statuses": [host("b", none)]},
        {"name": "replica-1", "host_statuses": [host("a", active)]},
    ]
    assert parse_in_flight(json.dumps({"cluster_statuses": statuses})) == {"a": 2, "b": 0}
