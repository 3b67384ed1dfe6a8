"""The guard: an Envoy on the public HTTP ports, which passes only checked requests to Triton."""

from millrace.serving.guard.process import command, find_envoy, health_url, log_file, running
from millrace.serving.guard.sockets import http_socket, metrics_socket, socket_answers

__all__ = [
    "command",
    "find_envoy",
    "health_url",
    "http_socket",
    "log_file",
    "metrics_socket",
    "running",
    "socket_answers",
]
