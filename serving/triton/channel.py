"""The options of a gRPC connection to a Triton, which may be one of several replicas.

The guard sends a request to one replica if its `:authority` is the name of that replica.
"""

from millrace.models.common.installation import Endpoint
from millrace.serving.guard.arrivals_log import CHECK_AGENT
from millrace.serving.guard.replica_names import authority_of

Options = tuple[tuple[str, int | str], ...]

UNLIMITED: Options = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
)


def channel_options(endpoint: Endpoint, *, checks: bool = False) -> Options:
    """Return the options of a connection: messages of any size, and the replica if one is meant.

    Args:
        endpoint: the server.
        checks: whether its requests are checks of Millrace's own, which the guard does not record.
    """
    found = UNLIMITED
    if endpoint.replica is not None:
        found = (*found, ("grpc.default_authority", authority_of(endpoint.replica)))
    if checks:
        found = (*found, ("grpc.primary_user_agent", CHECK_AGENT))
    return found
