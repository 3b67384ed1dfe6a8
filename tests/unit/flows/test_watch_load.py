"""`status --watch` of replicas that come and go."""

from collections.abc import Iterator

import pytest

from millrace.flows.cli import watch
from millrace.models.common.errors import TransientError
from millrace.models.common.installation import Endpoint
from millrace.serving.triton.served_load import GRPC_TIME, SUCCESS, Change, Look

ONE, TWO = Endpoint(replica=1), Endpoint(replica=2)
LABELS = frozenset({("model", "m"), ("version", "1")})


def looking(
    monkeypatch: pytest.MonkeyPatch, servers: list[list[Endpoint]], away: set[Endpoint]
) -> Iterator[dict[str, Change]]:
    def read(endpoint: Endpoint) -> dict:
        if endpoint in away:
            raise TransientError("Triton's metrics cannot be read")
        return {(SUCCESS, LABELS): 1.0}

    monkeypatch.setattr(watch, "read_metrics", read)
    found = iter(servers)
    return watch.look_again(lambda: next(found), 0.0)


def test_replicas_that_come_and_go_are_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = looking(monkeypatch, [[ONE], [ONE, TWO], [ONE, TWO], [ONE]], set())
    assert [sorted(next(looks)) for _ in range(3)] == [[str(ONE)], [str(ONE), str(TWO)], [str(ONE)]]


def test_a_replica_that_does_not_answer_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = looking(monkeypatch, [[ONE, TWO]] * 2, {TWO})
    assert list(next(looks)) == [str(ONE)]


def test_a_server_alone_must_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = looking(monkeypatch, [[Endpoint()]], {Endpoint()})
    with pytest.raises(TransientError):
        next(looks)


def test_what_clients_saw_at_the_guard_is_shown_once() -> None:
    labels = frozenset({("envoy_grpc_bridge_method", "ModelInfer")})
    after = {("envoy_cluster_grpc", labels): 5.0, (f"{GRPC_TIME}_bucket", labels): 1.0}
    change = Change(
        Look(0.0, {}), Look(1.0, {k: v for k, v in after.items() if "bucket" not in k[0]})
    )
    tables = watch.tables({str(ONE): change, str(TWO): change}).renderables
    assert [str(each.title) for each in tables].count("seen by clients") == 1
