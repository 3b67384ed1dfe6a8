"""Whether a replica serves everything, so that it may get requests."""

from datetime import UTC, datetime

from millrace.models.common.installation import Endpoint
from millrace.serving.release.cluster_state import ClusterState, Replica
from millrace.serving.release.joining import is_serving
from millrace.serving.release.release_state import DesiredVersion, Release, ReleaseState
from millrace.serving.triton.server_index import COLUMNS, READY, LoadedModel

V1, V2 = DesiredVersion(1, "d1"), DesiredVersion(2, "d2")
STATE = ReleaseState(
    live=Release(*("m", "live", 1, "d1", None, "a test"), at=datetime(2026, 11, 28, tzinfo=UTC))
)


def replica(*versions: int, front: tuple[int, ...] = (), dead: tuple[str, ...] = ()) -> Replica:
    loaded = [LoadedModel("m", version, READY, "") for version in versions]
    loaded += [LoadedModel("m" + COLUMNS, version, READY, "") for version in front]
    return Replica(Endpoint(replica=2), tuple(loaded), frozenset(dead))


def serves(of: Replica, **options: object) -> bool:
    values = {"desired_versions": {"m": V1}, "states": {"m": STATE}, "staged": {"m": {1: "d1"}}}
    return is_serving(ClusterState(replicas=(of,), **{**values, **options}), "m", of)


def test_a_replica_without_the_live_version_gets_no_requests() -> None:
    assert not serves(replica())
    assert serves(replica(1))


def test_a_version_that_is_about_to_go_live_is_not_waited_for() -> None:
    assert serves(replica(1), desired_versions={"m": V2})
    assert not serves(replica(1, 2), desired_versions={"m": V2})


def test_a_model_of_which_nothing_is_live_is_not_waited_for() -> None:
    assert serves(replica(), states={})


def test_a_model_whose_process_died_does_not_serve() -> None:
    assert not serves(replica(1, dead=("m",)))


def test_the_step_by_columns_belongs_to_it() -> None:
    named = {"columns": {"m": {1}}}
    assert not serves(replica(1), **named)
    assert serves(replica(1, front=(1,)), **named)
    assert not serves(replica(1, front=(1,), dead=("m" + COLUMNS,)), **named)
    assert serves(replica(1), **named, refused_fronts={"m": 1})
