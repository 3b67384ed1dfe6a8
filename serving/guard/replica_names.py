"""The names by which one replica of several behind a guard is asked."""


def authority_of(replica: int) -> str:
    """Return the `:authority` of a gRPC request that is meant for one replica."""
    return f"replica-{replica}"


def metrics_path(replica: int | None) -> str:
    """Return the path of a replica's metrics at the guard; None: of a server without replicas."""
    return "/metrics" if replica is None else f"/metrics/replica/{replica}"
