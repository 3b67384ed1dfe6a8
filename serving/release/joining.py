"""Whether a replica serves everything that clients should get, so that it may get requests.

Each model is looked at while no release changes it. A release that begins later knows the replica,
since a replica is told of releases from its start on; so it misses none.
"""

from dataclasses import replace
from typing import Literal

from millrace.models.common.installation import Endpoint
from millrace.serving.release.cluster_state import ClusterState, Replica
from millrace.serving.release.observe import Observer
from millrace.serving.release.plan import has_front, is_up_to_date
from millrace.serving.triton.server_index import COLUMNS, is_helper_model

State = Literal["away", "loading", "serving"]


def look_at(observer: Observer, endpoint: Endpoint) -> State:
    """Return whether a server does not answer, lacks something, or serves all live models.

    Args:
        observer: reads the state of the registry, the release table, the disk and the servers.
        endpoint: the server.
    """
    alone = replace(observer, endpoints=lambda: (endpoint,))
    cluster = alone.observe()
    if not cluster.reachable:
        return "away"
    known = {*cluster.states, *cluster.desired_versions, *cluster.staged}
    models = sorted(model for model in known if not is_helper_model(model))
    return "serving" if all(_has_model(alone, model) for model in models) else "loading"


def _has_model(observer: Observer, model: str) -> bool:
    """Return whether no release changes a model now, and the server serves what is live of it."""
    with observer.repository.exclusive(model, wait=False) as nothing_changes:
        if not nothing_changes:
            return False
        cluster = observer.observe(model)
    return all(is_serving(cluster, model, replica) for replica in cluster.reachable) and bool(
        cluster.reachable
    )


def is_serving(cluster: ClusterState, model: str, replica: Replica) -> bool:
    """Return whether a replica serves a model's live version, or the step of its rollout.

    A version that is about to replace the live one is not asked for: the release that makes it live
    tells this replica too.
    """
    live = cluster.state(model).live
    if live is None:
        return True
    desired = cluster.desired_versions.get(model)
    target = desired if desired is not None and desired.version == live.version else live.desired
    if not is_up_to_date(cluster, replica, model, target, cluster.splits.get(model)):
        return False
    if not has_front(cluster, model, target):
        return True
    front = model + COLUMNS
    return replica.ready_versions(front) == (live.version,) and front not in replica.unresponsive
