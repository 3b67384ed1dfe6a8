"""The part of Envoy's configuration that records when requests for inference arrive, and how large.

A line has the time of the start, the model, the protocol, the rows, the bytes of the request, the
duration and the status. It has no content, no header, no path and no address. Only requests whose
model a script named are recorded: `requests.lua` names that of HTTP, once the request is valid,
and `grpc_requests.lua` that of gRPC, from the first bytes of the message. The latter also refuses
names too long, so it runs even if nothing is recorded.
"""

from pathlib import Path

from millrace.models.common.installation import Endpoint
from millrace.serving.guard.envoy_routes import TYPES, Json

FOLDER = "arrivals"
"""Folder of the recorded arrivals in MILLRACE_HOME."""
LUA_FILE = Path(__file__).with_name("grpc_requests.lua")
FLUSH_OPTIONS = ("--file-flush-interval-msec", "1000")
"""Envoy's arguments: a killed guard loses its last second of lines."""
COLUMNS = ("start_us", "model", "rows", "protocol", "bytes", "microseconds", "status", "end")
END = "."
"""The last word of each line; a line without it was not written whole."""
HTTP, GRPC = "http", "grpc"
CHECK_AGENT = "millrace-check"
"""How the user agent of a gRPC request begins that is not recorded: a check of Millrace's own."""
_NAMESPACE, _KEY = "millrace", "arrival"
"""Where the scripts put the model and the rows, separated by a space."""
_STATUS = {HTTP: "%RESPONSE_CODE%", GRPC: "%GRPC_STATUS_NUMBER%"}


def log_path(endpoint: Endpoint) -> str:
    """Return the path of the file that the guard writes to, relative to MILLRACE_HOME."""
    return f"{FOLDER}/{endpoint.http_port}.log"


def access_log(protocol: str, path: str | None) -> Json:
    """Return the keys of Envoy's connection manager that record arrivals; none without a path."""
    if path is None:
        return {}
    line = (
        "%START_TIME(%s%6f)%",
        f"%DYNAMIC_METADATA({_NAMESPACE}:{_KEY})%",
        protocol,
        "%BYTES_RECEIVED%",
        "%COMMON_DURATION(DS_RX_BEG:DS_TX_END:us)%",
        _STATUS[protocol],
        END,
    )
    is_named = {"filter": _NAMESPACE, "path": [{"key": _KEY}], "value": {"present_match": True}}
    typed: Json = {"@type": f"{TYPES}.access_loggers.file.v3.FileAccessLog", "path": path}
    typed["log_format"] = {"text_format_source": {"inline_string": " ".join(line) + "\n"}}
    record = {
        "name": "arrivals",
        "filter": {"metadata_filter": {"matcher": is_named, "match_if_key_not_found": False}},
        "typed_config": typed,
    }
    return {"access_log": [record]}


def grpc_filters() -> list[Json]:
    """Return the filter that names the model of a gRPC request, and refuses names too long."""
    code: Json = {"@type": f"{TYPES}.filters.http.lua.v3.Lua"}
    code["default_source_code"] = {"filename": str(LUA_FILE)}
    return [{"name": "arrivals", "typed_config": code}]


def refusals() -> list[Json]:
    """Return the headers of a gRPC answer to a request that the script refused.

    The script cannot answer itself, since the request's beginning has been passed on by then; it
    makes Triton refuse the rest, and these replace Triton's error.
    """
    values = {"grpc-status": "refused_status", "grpc-message": "refused"}
    return [
        {
            "header": {"key": name, "value": f"%DYNAMIC_METADATA({_NAMESPACE}:{key})%"},
            "append_action": "OVERWRITE_IF_EXISTS",
        }
        for name, key in values.items()
    ]
