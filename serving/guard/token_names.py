"""The names under which a request to Triton carries the endpoint's token."""

TOKEN_HEADER = "millrace-token"
"""The HTTP header of an endpoint's token."""
TOKEN_METADATA = f"triton-grpc-protocol-{TOKEN_HEADER}"
"""The gRPC metadata key of the token: Triton requires this prefix before the header."""
