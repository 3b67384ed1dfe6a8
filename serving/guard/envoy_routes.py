"""Parts of Envoy's routes that HTTP and gRPC share: matches, and answers of Envoy's own."""

from typing import Any

from millrace.models.common.installation import Endpoint

Json = dict[str, Any]

TYPES = "type.googleapis.com/envoy.extensions"
NO_LIMIT = "0s"
FOREIGN_HOST = "the Host header names another host than this server"
_FOREIGN_PAGE = "requests from a web page of another origin are refused"


def own_hosts(endpoint: Endpoint) -> list[str]:
    """Return the names of this server that a request's Host, or `:authority`, may have."""
    return list(dict.fromkeys([endpoint.host, "127.0.0.1", "localhost", "[::1]"]))


def refuse_foreign_pages(host: str, port: int) -> list[Json]:
    """Return the routes that refuse requests from a web page of another origin.

    A link on another site may open a readable path as a top-level page.
    """
    own = "|".join(each.replace(".", r"\.") for each in ("localhost", host))
    foreign = header("origin", regex=rf"http://({own}):{port}") | {"invert_match": True}
    site = header("sec-fetch-site", regex="cross-site|same-site")
    other_than = {"invert_match": True, "treat_missing_header_as_empty": True}
    no_links = (
        header(":method", exact="GET") | other_than,
        header("sec-fetch-mode", exact="navigate") | other_than,
        header("sec-fetch-dest", exact="document") | other_than,
    )
    refused = ([header("origin"), foreign], *([site, each] for each in no_links))
    return [respond({"prefix": "/", "headers": each}, 403, _FOREIGN_PAGE) for each in refused]


def header(name: str, exact: str | None = None, regex: str | None = None) -> Json:
    """Return the match of a header: with a value, with a pattern of it, or with any value."""
    if regex is not None:
        return {"name": name, "string_match": {"safe_regex": {"regex": regex}}}
    if exact is None:
        return {"name": name, "present_match": True}
    return {"name": name, "string_match": {"exact": exact}}


def forward(match: Json, cluster: str) -> Json:
    """Return a route to a cluster, without a time limit."""
    return {"match": match, "route": {"cluster": cluster, "timeout": NO_LIMIT}}


def respond(match: Json, status: int, why: str) -> Json:
    """Return a route that Envoy answers itself, without Triton."""
    answer = {"status": status, "body": {"inline_string": why}}
    return {"match": match, "direct_response": answer}


def virtual_hosts(endpoint: Endpoint, routes: list[Json], foreign_status: int) -> list[Json]:
    """Return the routes of this server's own names, and a refusal of every other name."""
    refusal = respond({"prefix": "/"}, foreign_status, FOREIGN_HOST)
    return [
        {"name": "own", "domains": own_hosts(endpoint), "routes": routes},
        {"name": "foreign", "domains": ["*"], "routes": [refusal]},
    ]
