"""The guard before Triton's HTTP: what it refuses, what it lets through, and who may do what."""

import gzip
import http.client
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient import grpc as triton_grpc
from tritonclient import http as triton_http
from tritonclient.utils import InferenceServerException

from millrace.models.common.installation import Endpoint, Installation
from millrace.serving.guard import envoy_process, sockets
from millrace.serving.guard.envoy_config import MAX_BODY_BYTES, MAX_PATH_BYTES
from millrace.serving.guard.token_names import TOKEN_HEADER, TOKEN_METADATA
from millrace.serving.triton import server as triton
from tests.integration.guard_stand import INFER, Stand, stand, tensor
from tests.integration.ports import free_endpoint

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the wheel is for Linux")
ROWS = np.arange(8, dtype=np.float32).reshape(2, 4)
GOOD = {"inputs": [tensor(ROWS)]}
GOOD_TEXT = json.dumps(GOOD)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    # A home whose sockets' whole paths are longer than an address has room for.
    home = tmp_path_factory.mktemp("guarded") / ("long" * 30)
    with stand(home) as found:
        yield found


def shaped(*shape: Any, data: Any = (), **changed: Any) -> str:
    return json.dumps({"inputs": [tensor(ROWS, shape=shape, data=list(data), **changed)]})


ENDS_TRITON = {
    "a dimension over 31 bits": shaped(2147483648, 64),
    "the largest dimension": shaped(9223372036854775807, 64),
    "an overflow of the bytes": shaped(1, 4611686018427387904),
    "an overflow of 32 bits": shaped(4294967297, 64),
    "large dimensions that each fit": shaped(2147483647, 2147483647, 2147483647),
    "a huge one and none": shaped(9223372036854775807, 0),
}
SUMMED = {"name": "y", "parameters": {"binary_data": "x"}}


def with_parameters(**parameters: Any) -> str:
    return json.dumps(GOOD | {"parameters": parameters})


MALFORMED: dict[str, str | bytes] = {
    "nothing": "",
    "half": '{"inputs": [',
    "no object": "[]",
    "after the end": GOOD_TEXT + "x",
    "a trailing comma": '{"inputs": [],}',
    "NaN": GOOD_TEXT.replace("7.0", "NaN"),
    "Infinity": GOOD_TEXT.replace("7.0", "-Infinity"),
    "a number over a double": GOOD_TEXT.replace("7.0", "1e999"),
    "a leading zero": GOOD_TEXT.replace("7.0", "07"),
    "a lone surrogate": '{"id": "\\ud800"}',
    "a control character": '{"id": "\x01"}',
    "nested": '{"inputs":' + "[" * 100_000,
    "nested objects": '{"a":' * 100_000,
    "negative": shaped(-1, 4, data=range(4)),
    "a fraction": shaped(1.5, 4, data=range(6)),
    "fewer values": shaped(2, 4, data=range(7)),
    "more values": shaped(2, 4, data=range(9)),
    "no data": GOOD_TEXT.replace('"data"', '"date"'),
    "no shape": GOOD_TEXT.replace('"shape"', '"shade"'),
    "no datatype": GOOD_TEXT.replace('"datatype"', '"date"'),
    "a datatype that there is not": GOOD_TEXT.replace("FP32", "FP33"),
    "a shape twice": GOOD_TEXT.replace('"shape"', '"shape": [2, 4], "shape"'),
    "a key with an escape": GOOD_TEXT.replace('"shape"', '"sh\\u0061pe"'),
    "shared memory": shaped(2, 4, parameters={"shared_memory_region": "r"}),
    "a binary size alone": shaped(2, 4, parameters={"binary_data_size": 32}),
    "an input that is a number": '{"inputs": [1]}',
    "no inputs": '{"id": "1"}',
    "a timeout that is no number": GOOD_TEXT[:-1] + ', "parameters": {"timeout": "x"}}',
    "a negative priority": GOOD_TEXT[:-1] + ', "parameters": {"priority": -1}}',
    "too many outputs": json.dumps(GOOD | {"outputs": [{"name": "y"}] * 5000}),
    "an id that is no text": GOOD_TEXT[:-1] + ', "id": 1}',
    "a name that is no text": GOOD_TEXT.replace('"x"', "1"),
    "text for numbers": GOOD_TEXT.replace("7.0", '"7.0"'),
    "nothing for numbers": GOOD_TEXT.replace("7.0", "null"),
    "fractions for whole numbers": GOOD_TEXT.replace("FP32", "INT64"),
    "numbers for yes and no": GOOD_TEXT.replace("FP32", "BOOL"),
    "parameters that Triton would look through for minutes": with_parameters(
        **{f"{n:x}": 1 for n in range(100_000)}
    ),
    "keys likewise": json.dumps(GOOD | {f"{n:x}": 1 for n in range(300)}),
    "a negative sequence": with_parameters(sequence_id=-5),
    "a sequence's start that is neither true nor false": with_parameters(sequence_start="x"),
    "a form of the answer that is neither": with_parameters(binary_data_output="x"),
    "a form of an output that is neither": json.dumps(GOOD | {"outputs": [SUMMED]}),
    "bytes that are no UTF-8": GOOD_TEXT[:-1].encode() + b', "id": "\xff"}',
    "UTF-8 that is too long": GOOD_TEXT[:-1].encode() + b', "id": "\xc0\xaf"}',
    "a name with an end in it": GOOD_TEXT.replace('"x"', '"x\\u0000y"'),
}


@pytest.mark.parametrize("name", [*ENDS_TRITON, *MALFORMED])
def test_what_is_wrong_is_refused_with_a_reason_and_ends_nothing(served, name) -> None:
    answer = served.ask((ENDS_TRITON | MALFORMED)[name])
    assert answer.status == 400
    assert answer.json["error"]
    assert served.is_right()


def test_parameters_of_generate_are_an_object(served) -> None:
    answer = served.ask('{"x": 1, "parameters": [1]}', "/v2/models/sums/generate")
    assert answer.status == 400
    assert "parameters" in answer.json["error"]


def test_values_of_generate_are_of_one_kind(served) -> None:
    answer = served.ask('{"x": [1, "a"]}', "/v2/models/sums/generate")
    assert answer.status == 400
    assert "one kind" in answer.json["error"]


def test_an_old_proxy_is_answered_and_a_body_that_is_as_it_is(served) -> None:
    """nginx speaks HTTP/1.0 if it is not told otherwise; some clients name their no encoding."""
    connection = http.client.HTTPConnection("127.0.0.1", served.endpoint.http_port, timeout=30)
    connection._http_vsn, connection._http_vsn_str = 10, "HTTP/1.0"  # type: ignore[attr-defined]
    headers = {"Host": "127.0.0.1", "Content-Encoding": "identity"}
    connection.request("POST", INFER, GOOD_TEXT, headers)
    answer = connection.getresponse()
    assert answer.status == 200
    assert json.loads(answer.read())["outputs"][0]["data"] == [6.0, 22.0]


def test_answers_are_those_of_the_bare_server(served) -> None:
    assert served.sums(ROWS) == [6.0, 22.0]
    nested = {"inputs": [tensor(ROWS, data=ROWS.tolist())], "id": "é\\n\ud83d\ude00"}
    assert served.ask(nested).json["outputs"][0]["data"] == [6.0, 22.0]


def test_curl_with_its_own_content_type_is_answered(served) -> None:
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    assert served.ask(GOOD, headers=form).status == 200


@pytest.mark.parametrize("binary", [True, False])
def test_tritons_own_client_works_with_and_without_binary_tensors(served, binary) -> None:
    with triton_http.InferenceServerClient(served.endpoint.http) as client:
        assert client.is_server_ready()
        assert client.get_model_config("sums")["name"] == "sums"
        x = triton_http.InferInput("x", [2, 4], "FP32")
        x.set_data_from_numpy(ROWS, binary_data=binary)
        wanted = [triton_http.InferRequestedOutput("y", binary_data=binary)]
        found = client.infer("sums", [x], outputs=wanted).as_numpy("y")
        assert found is not None
        assert found.ravel().tolist() == [6.0, 22.0]
        words = np.array([["a"], ["ü"]], dtype=np.object_)
        w = triton_http.InferInput("w", [2, 1], "BYTES")
        w.set_data_from_numpy(words, binary_data=binary)
        same = client.infer("words", [w]).as_numpy("same")
        assert same is not None
        assert [each.decode() for each in same.ravel()] == ["a", "ü"]


def binary(size: int, follows: int, **changed: Any) -> tuple[bytes, dict[str, str]]:
    """Return a request whose tensor follows its JSON."""
    x = tensor(ROWS, parameters={"binary_data_size": size}, **changed)
    del x["data"]
    header = json.dumps({"inputs": [x]}).encode()
    return header + bytes(follows), {"Inference-Header-Content-Length": str(len(header))}


def test_a_binary_tensor_must_be_as_long_as_its_shape_says(served) -> None:
    assert served.ask(*_asked(binary(32, 32))).status == 200
    for size, follows, changed in (
        (32, 31, {}),
        (32, 33, {}),
        (28, 28, {}),
        (36, 36, {}),
        (0, 0, {"shape": [2147483647, 4]}),
        (8, 8, {"shape": [4611686018427387904, 4]}),
    ):
        answer = served.ask(*_asked(binary(size, follows, **changed)))
        assert answer.status == 400, (size, follows, changed, answer)
    for length in ("-1", "x", "99999999999", "5000", ""):
        body, _ = binary(32, 32)
        headers = {"Inference-Header-Content-Length": length}
        assert served.ask(body, headers=headers).status == 400, length
    assert served.is_right()


def _asked(request: tuple[bytes, dict[str, str]]) -> tuple[bytes, str, dict[str, str]]:
    body, headers = request
    return body, INFER, headers


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br"])
def test_a_body_that_is_compressed_is_refused(served, encoding) -> None:
    body = gzip.compress(b"[" * 50_000_000) if encoding == "gzip" else GOOD_TEXT.encode()
    answer = served.ask(body, headers={"Content-Encoding": encoding})
    assert answer.status == 415
    assert "compressed" in answer.json["error"]
    assert served.is_right()


def test_a_body_over_the_limit_is_refused(served) -> None:
    answer = served.ask(b"[" * (MAX_BODY_BYTES + 2**20))
    assert answer.status == 413
    assert answer.json["error"]
    assert served.is_right()


def test_a_large_body_is_answered(served) -> None:
    rows = np.ones((64, 4), np.float32)
    padded = {"inputs": [tensor(rows)], "id": "x" * 6_000_000}
    assert served.ask(padded).status == 200


def test_chunks_are_put_together_and_checked(served) -> None:
    def chunked(text: str) -> int:
        connection = http.client.HTTPConnection(*_address(served), timeout=30)
        pieces = [text[at : at + 7].encode() for at in range(0, len(text), 7)]
        connection.request("POST", INFER, iter(pieces), encode_chunked=True)
        return connection.getresponse().status

    assert chunked(GOOD_TEXT) == 200
    assert chunked(GOOD_TEXT[:-1] + ', "id": "' + "x" * 3_000_000 + '"}') == 200
    assert served.is_right()
    assert chunked(ENDS_TRITON["a dimension over 31 bits"]) == 400


def _address(served: Stand) -> tuple[str, int]:
    return served.endpoint.host, served.endpoint.http_port


@pytest.mark.parametrize(
    "raw",
    [
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n"
        "Content-Length: 5\r\n\r\nabcd",
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n"
        "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        "POST {path} HTTP/1.1\r\n\r\n",
        "GARBAGE\r\n\r\n",
    ],
)
def test_what_two_servers_could_read_differently_is_refused(served, raw) -> None:
    with socket.create_connection(_address(served), timeout=30) as connection:
        connection.sendall(raw.format(path=INFER).encode())
        assert connection.recv(4096).split(b" ")[1] in (b"400", b"501")
    assert served.is_right()


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example"])
@pytest.mark.parametrize("path", ["/v2", INFER])
def test_a_foreign_host_is_refused(served, host, path) -> None:
    answer = served.ask(GOOD, path, {"Host": host})
    assert answer.status == 421
    assert answer.json["error"]
    metrics = served.ask(
        path="/metrics", headers={"Host": host}, method="GET", port=served.endpoint.metrics_port
    )
    assert metrics.status == 421


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "LOCALHOST:1", "[::1]:8000"])
def test_the_names_of_this_machine_are_own_hosts(served, host) -> None:
    assert served.ask(GOOD, headers={"Host": host}).status == 200


FROM_A_PAGE = (
    {"Origin": "http://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://localhost:9"},
    {"Origin": "http://127.0.0.1:9", "Content-Type": "text/plain"},
    {"Sec-Fetch-Site": "cross-site", "Content-Type": "application/x-www-form-urlencoded"},
    {"Sec-Fetch-Site": "same-site"},
)


@pytest.mark.parametrize("headers", FROM_A_PAGE)
def test_a_page_of_another_origin_is_refused(served, headers) -> None:
    answer = served.ask(GOOD, headers=headers)
    assert answer.status == 403
    assert "origin" in answer.json["error"]


READS_FROM_A_PAGE = (
    {"Origin": "http://evil.example"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "script"},
    {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"},
)


@pytest.mark.parametrize("headers", READS_FROM_A_PAGE)
def test_a_page_of_another_origin_reads_nothing(served, headers) -> None:
    metrics = {"path": "/metrics", "port": served.endpoint.metrics_port}
    for asked in ({"path": "/v2/models/sums/config"}, metrics):
        answer = served.ask(headers=headers, method="GET", **asked)
        assert answer.status == 403
        assert "origin" in answer.json["error"]


def test_a_link_to_it_may_be_followed(served) -> None:
    headers = {
        "Sec-Fetch-Site": "cross-site",
        "Sec-Fetch-Mode": "navigate",
        "Sec-Fetch-Dest": "document",
    }
    assert served.ask(path="/v2/models/sums/config", headers=headers, method="GET").status == 200


@pytest.mark.parametrize(
    "path",
    [
        *("/v2/repository/index", "/v2/repository/models/sums/unload"),
        *("/v2/repository/models/planted/load", "/v2/models/sums/trace/setting"),
        *("/v2/trace/setting", "/v2/logging", "/v2/systemsharedmemory/status"),
        *("/v2/systemsharedmemory/region/r/register", "/v2/cudasharedmemory/status"),
        *("/v2//repository/index", "/v2/./repository/index", "/v2/models/../repository/index"),
        *("/v2%2Frepository/index", "/v2/repositor%79/index", "/v2/models/sums%2Finfer", "/"),
    ],
)
@pytest.mark.parametrize("method", ["POST", "GET"])
def test_what_changes_the_server_is_not_there_even_with_the_token(served, path, method) -> None:
    token = {TOKEN_HEADER: served.endpoint.token}
    answer = served.ask(b"{}", path, token, method=method)
    assert answer.status in (400, 404)
    assert answer.json["error"]


@pytest.mark.parametrize("method", ["PUT", "DELETE", "OPTIONS", "TRACE", "PATCH"])
def test_other_methods_are_not_there(served, method) -> None:
    assert served.ask(b"{}", method=method).status in (404, 405)


def named(size: int, after: str = "") -> str:
    """Return a path of so many bytes, with a model's name that fills it."""
    start = "/v2/models/"
    return start + "m" * (size - len(start + after)) + after


@pytest.mark.parametrize("method", ["GET", "POST", "PUT"])
@pytest.mark.parametrize(
    "path",
    [
        *(named(MAX_PATH_BYTES + 1), named(MAX_PATH_BYTES + 1, "/infer"), named(5000, "/infer")),
        *("/v2?" + "q" * MAX_PATH_BYTES, "/nowhere" + "x" * 5000, "/" + "%2F" * 1000),
    ],
    ids=lambda path: f"{path[:12]}-{len(path)}",
)
def test_a_long_path_is_refused_with_a_reason(served, path, method) -> None:
    for port in (served.endpoint.http_port, served.endpoint.metrics_port):
        answer = served.ask(GOOD, path, method=method, port=port)
        assert answer.status == 414
        assert "path" in answer.json["error"]


def test_the_longest_path_reaches_triton_as_it_was(served) -> None:
    for path in (named(MAX_PATH_BYTES), named(MAX_PATH_BYTES, "/config")):
        answer = served.ask(path=path, method="GET")
        assert answer.status in (400, 404)
        assert path.split("/")[3] in answer.json["error"].replace("'", " ").split()


@pytest.mark.parametrize("path", [INFER, "/v2", "/nowhere", named(9000, "/infer")])
def test_large_headers_are_refused_with_a_reason(served, path) -> None:
    many, large = {f"X-{n}": "a" for n in range(150)}, {"X-Large": "a" * 16_000}
    for headers in (large, many, {f"X-{n}": "a" * 200 for n in range(50)}):
        for port in (served.endpoint.http_port, served.endpoint.metrics_port):
            answer = served.ask(GOOD, path, headers, port=port)
            assert answer.status == 431
            assert "headers" in answer.json["error"]
    assert served.ask(GOOD, headers={"X-Large": "a" * 7_500}).status == 200
    assert served.is_right()


def test_metrics_are_one_page_to_read(served) -> None:
    port = served.endpoint.metrics_port
    page = served.ask(path="/metrics", method="GET", port=port)
    assert page.status == 200
    assert b"nv_inference_count" in page.body
    assert served.ask(b"{}", "/metrics", port=port).status == 404
    for path in ("/stats/prometheus", "/metrics/", "/quitquitquit", "/config_dump"):
        assert served.ask(path=path, method="GET", port=port).status == 404
    assert served.ask(path="/v2", method="GET", port=port).status == 404


SCAN = """
import json, os, pathlib
found = []
for folder in pathlib.Path("/proc").iterdir():
    if folder.name.isdigit():
        try:
            found.append((folder / "cmdline").read_bytes().decode(errors="replace"))
        except OSError:
            pass
print(json.dumps(found))
"""


def _as_nobody(code: str, *arguments: str) -> Any:
    command = ["/usr/bin/python3", "-c", code, *arguments]
    done = subprocess.run(command, user="nobody", group="nogroup", capture_output=True, cwd="/")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


only_as_root = pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user takes root")


@only_as_root
def test_another_user_finds_no_token_in_any_process_and_manages_nothing(served) -> None:
    lines = _as_nobody(SCAN)
    server = [line for line in lines if f"--grpc-port={served.endpoint.grpc_port}" in line]
    assert len(server) == 1, "the server's own arguments are readable, as all are"
    assert not [line for line in lines if served.endpoint.token in line]
    words = {word for line in server for word in line.replace("=", "\0").split("\0")}
    with triton_grpc.InferenceServerClient(served.endpoint.grpc) as client:
        for word in words:
            printable = "".join(c for c in word if 32 <= ord(c) < 127)
            with pytest.raises(InferenceServerException, match="is restricted"):
                client.unload_model("sums", headers={TOKEN_METADATA: printable})
    assert served.is_right()


@only_as_root
def test_another_user_reaches_no_socket_of_triton(served) -> None:
    for name_of in (sockets.http_socket, sockets.grpc_socket, sockets.metrics_socket):
        path = served.installation.home / name_of(served.endpoint)
        assert path.is_socket()
        # The whole name is too long to connect to; who cannot enter the folder cannot connect.
        look = "import json, os, sys; print(json.dumps(os.access(sys.argv[1], os.X_OK)))"
        assert _as_nobody(look, str(path.parent)) is False


def test_shared_memory_with_requests_is_for_nobody_else_to_read(served) -> None:
    assert served.is_right()
    regions = [each for each in triton.SHARED_MEMORY.iterdir() if is_of(served.endpoint, each)]
    assert regions
    assert [each.name for each in regions if each.stat().st_mode & 0o077] == []


def is_of(endpoint: Endpoint, region: Path) -> bool:
    return region.name.startswith("millrace_") and f"_{endpoint.grpc_port}_" in region.name


def test_its_configuration_and_its_log_are_private(served) -> None:
    file = served.installation.run / f"guard-{served.endpoint.http_port}.json"
    for path in (file, envoy_process.log_file(served.installation, served.endpoint)):
        assert path.stat().st_mode & 0o077 == 0
    admin = json.loads(file.read_text())["admin"]["address"]
    assert list(admin) == ["pipe"]
    socket_file = served.installation.home / admin["pipe"]["path"]
    assert socket_file.is_socket()
    assert socket_file.stat().st_mode & 0o077 == 0
    assert served.endpoint.token not in file.read_text()


def test_without_a_triton_it_says_so_in_json(tmp_path: Path) -> None:
    installation, endpoint = Installation(tmp_path, "", "").prepared(), free_endpoint()
    with envoy_process.running(installation, endpoint):
        answer = Stand(installation, endpoint, None).ask(GOOD)  # type: ignore[arg-type]
        assert answer.status == 503
        assert answer.json["error"]


def test_without_a_guard_triton_takes_http_itself(tmp_path: Path) -> None:
    installation, endpoint = Installation(tmp_path, "", "").prepared(), free_endpoint()
    with triton.running(installation, endpoint, guarded=False) as client:
        bare = Stand(installation, endpoint, client)
        assert bare.ask(path="/v2/health/ready", method="GET").status == 200
        closed = bare.ask(b"{}", "/v2/repository/index")
        assert closed.status == 403, closed
        with_token = {TOKEN_HEADER: endpoint.token}
        assert bare.ask(b"{}", "/v2/repository/index", with_token).status == 200
