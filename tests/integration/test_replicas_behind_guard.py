"""Several Tritons behind one guard: they come, go, die and are released to under load."""

import json
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from threading import Thread

import grpc
import pytest
from tritonclient.grpc import service_pb2_grpc

from millrace.models.common.errors import TransientError, WorkError
from millrace.models.config.replicas_spec import ReplicasSpec
from millrace.serving.guard.envoy_replicas import ENDED, replica_endpoint
from millrace.serving.release import apply
from millrace.serving.triton.client import TritonClient, connect
from millrace.serving.triton.load_version import load_version
from millrace.serving.triton.served_load import SUCCESS, read_metrics
from tests.integration.replica_stand import NAME, ReplicaStand, replica_stand
from tests.integration.test_grpc_guard import COUNTS, COUNTS_CONFIG, counting

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the wheel is for Linux")

CLIENTS = 4


@pytest.fixture(scope="module")
def stand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplicaStand]:
    home = tmp_path_factory.mktemp("replicas") / "home"
    with replica_stand(home, ReplicasSpec(min=1, max=3)) as found:
        found.until_serving(1)
        found.promote(1)
        yield found


def test_replicas_come_and_go_under_load_and_no_request_fails(stand: ReplicaStand) -> None:
    with stand.clients(CLIENTS) as answers:
        stand.want(3)
        stand.until_serving(3)
        assert [stand.live(number) for number in (1, 2, 3)] == [1, 1, 1]
        for number in (1, 2, 3):
            shown = read_metrics(replica_endpoint(stand.guard, number))
            assert {dict(labels)["model"] for name, labels in shown if name == SUCCESS} == {NAME}
        stand.want(1)
        stand.until(lambda: list(stand.states().values()).count("serving") == 1)
    assert answers.failed == []
    assert len(answers.versions) > 100
    stand.until_serving(1)


def test_a_replica_that_starts_during_a_release_misses_nothing(stand: ReplicaStand) -> None:
    stand.want(1)
    stand.until_serving(1)
    with stand.clients(CLIENTS) as answers:
        stand.want(2)
        stand.until(lambda: 2 in stand.states())
        releasing = Thread(target=stand.promote, args=(2,))
        releasing.start()
        stand.until_serving(2)
        releasing.join()
        assert [stand.live(1), stand.live(2)] == [2, 2]
        answers.versions.clear()
        stand.until(lambda: len(answers.versions) > 100)
    assert answers.failed == []
    assert set(answers.versions) == {2}


def test_a_replica_that_is_killed_costs_the_requests_in_flight(stand: ReplicaStand) -> None:
    stand.want(2)
    stand.until_serving(2)
    with stand.clients(CLIENTS) as answers:
        before = stand.pid(2)
        stand.kill(2)
        stand.until(lambda: stand.states().get(2) != "serving", 5)
        stand.until_serving(2)
        assert stand.pid(2) != before
    assert len(answers.failed) <= CLIENTS, answers.failed
    assert set(answers.failed) <= {ENDED}
    assert len(answers.versions) > 100


def test_streams_stay_with_their_replica_until_their_end(stand: ReplicaStand) -> None:
    stand.want(2)
    stand.until_serving(2)
    code = {"file:1/model.py": COUNTS.format(cancelled="/dev/null").encode()}
    for number in (1, 2):
        with closing(connect(replica_endpoint(stand.guard, number))) as client:
            client.load_model("counts", config=json.dumps(COUNTS_CONFIG), files=code)

    with grpc.insecure_channel(stand.guard.grpc) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        streams = [stub.ModelStreamInfer(iter([counting(20, 50)]), timeout=60) for _ in range(4)]
        firsts = [next(stream) for stream in streams]
        assert not any(first.error_message for first in firsts)
        stand.want(1)
        stand.until(lambda: stand.states().get(2) == "draining", 5)
        rest = [[each for each in stream if not each.error_message] for stream in streams]
        assert [len(each) for each in rest] == [19] * 4
    with closing(connect(replica_endpoint(stand.guard, 1))) as client:
        client.unload_model("counts")


def test_one_replica_alone_is_guarded_as_all_are(stand: ReplicaStand) -> None:
    for token, said in (("", "restricted to `millrace`"), ("0" * 64, "expecting header")):
        own = replace(replica_endpoint(stand.guard, 1), token=token)
        with TritonClient(own) as client, pytest.raises(WorkError) as caught:
            client.load(NAME)
        assert said in str(caught.value)


def test_a_version_that_one_replica_refuses_is_live_on_none(
    stand: ReplicaStand, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand.want(2)
    stand.until_serving(2)
    live = stand.live(1)

    def refuse(model: str, version: int, repository: object, client: TritonClient, **options):
        if client.endpoint.replica == 2 and version == 3:
            raise WorkError("Triton refused to load m", seen="a test")
        return load_version(model, version, repository, client, **options)

    monkeypatch.setattr(apply, "load_version", refuse)
    outcomes = stand.promote(3)
    assert all("version 3 of m was refused" in str(each.error) for each in outcomes)
    assert [stand.live(1), stand.live(2)] == [live, live]
    with stand.clients(1) as answers:
        stand.until(lambda: len(answers.versions) > 20)
    assert set(answers.versions) == {live}
    assert stand.registry.written[NAME, 3]["millrace.status"] == "refused"


def test_a_replica_that_stops_during_a_release_does_not_fail_it(
    stand: ReplicaStand, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand.want(2)
    stand.until_serving(2)

    def stop_first(model: str, version: int, repository: object, client: TritonClient, **options):
        if client.endpoint.replica == 2:
            stand.want(1)
            stand.until(lambda: stand.states().get(2) in ("draining", "stopping", None))
            raise TransientError("no Triton answers")
        return load_version(model, version, repository, client, **options)

    monkeypatch.setattr(apply, "load_version", stop_first)
    outcomes = stand.promote(4)
    assert [(each.endpoint.replica, each.error) for each in outcomes] == [(1, None)]
    assert stand.live(1) == 4
