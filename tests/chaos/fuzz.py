"""Malformed requests at every door of a server: none may end it, and right answers go on between.

`python -m tests.chaos.fuzz [--requests 20000] [--seed 0]`. One seed makes one sequence. The
doors are Triton's HTTP through its guard, its gRPC, and the one in OpenAI's form; all on loopback.
"""

import argparse
import gzip
import http.client
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import psutil
from tritonclient.grpc import service_pb2, service_pb2_grpc

from millrace.serving.openai_api.api_key import KEYS_FILE, add_key, create_secret, update_keys
from tests.integration.guard_stand import Stand, stand
from tests.integration.test_openai_api import running as door_running

NUMBERS = (
    *(-1, 0, 1, 2, 4, 7, 64, 127, 255, 2**16, 2**31 - 1, 2**31, 2**32, 2**32 + 1, 2**62, 2**63 - 1),
    *(2**63, 2**64, 2**64 + 1, -(2**31), -(2**63), 10**30, 1.5, 1e308, 1e-300),
)
ODD = (*NUMBERS, None, True, "", "x", "NaN", "\x00", "\ud800", "é" * 40, [], {}, [[]], [{}], [None])
TYPES = (
    "FP32",
    "FP64",
    "FP16",
    "BF16",
    "BYTES",
    "BOOL",
    "INT8",
    "INT64",
    "UINT64",
    "fp32",
    "",
    "X",
)
KEYS = (
    *("inputs", "outputs", "parameters", "id", "name", "shape", "datatype", "data"),
    *("binary_data_size", "classification", "shared_memory_region", "shared_memory_byte_size"),
    *(
        "binary_data",
        "priority",
        "timeout",
        "sequence_id",
        "text_input",
        "model",
        "prompt",
        "messages",
    ),
)
PATHS = (
    *("/v2/models/sums/infer",) * 8,
    *("/v2/models/words/infer",) * 3,
    *("/v2/models/sums/versions/1/infer", "/v2/models/sums/versions/99999999999999999999/infer"),
    *("/v2/models/sums/generate", "/v2/models/words/generate_stream", "/v2/models/x/infer"),
    *("/v2/repository/index", "/v2/models/sums/trace/setting", "/v2/logging", "/v2/models//infer"),
    *("/v2/models/%00/infer", "/v2/models/a%2fb/infer", "/v2/models/" + "m" * 5000 + "/infer", "/"),
)
RAW = (
    *(
        b"NaN",
        b"Infinity",
        b"-Infinity",
        b"1e999",
        b"[" * 300,
        b'{"a":' * 300,
        b"\x00",
        b"\xff\xfe",
    ),
    *(b'"\\ud800"', b'"\\u12"', b"//", b",", b"]", b"}", b"1.", b"-", b"01", b'"', b"9" * 400),
)


@dataclass
class Found:
    """What came of it.

    Attributes:
        sent: requests by door.
        statuses: answers by door and status.
        wrong: what should not have been: an answer with 5xx, a server that ended, a wrong answer.
        checks: right answers between.
    """

    sent: Counter[str] = field(default_factory=Counter)
    statuses: Counter[tuple[str, Any]] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    checks: int = 0


class Maker:
    """Makes malformed requests, the same ones for the same seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def shape(self) -> list[Any]:
        """Return a shape, right or not."""
        pick = self.random.choice
        return [pick(NUMBERS) for _ in range(pick((0, 1, 2, 2, 2, 3, 8, 70)))]

    def value(self, depth: int = 0) -> Any:
        """Return any value."""
        kind = self.random.randrange(8)
        if depth < 3 and kind == 0:
            return [self.value(depth + 1) for _ in range(self.random.randrange(4))]
        if depth < 3 and kind == 1:
            keys = self.random.sample(KEYS, self.random.randrange(4))
            return {key: self.value(depth + 1) for key in keys}
        return self.random.choice(ODD)

    def input(self) -> dict[str, Any]:
        """Return an input of which something is wrong, mostly."""
        pick, made = self.random.choice, {"name": "x", "shape": [2, 4], "datatype": "FP32"}
        made["data"] = [1.0] * pick((0, 1, 8, 8, 9))
        for _ in range(self.random.randrange(4)):
            change_of = {
                "shape": self.shape,
                "datatype": partial(pick, TYPES),
                "data": partial(self.value),
                "parameters": lambda: {pick(KEYS): self.value(2)},
                "name": partial(pick, ("x", "w", "", "y", "\x00")),
            }
            key = pick(list(change_of))
            made[key] = change_of[key]()
            if self.random.random() < 0.15:
                made.pop(pick(list(made)))
        return made

    def body(self) -> bytes:
        """Return a body: JSON with something wrong, or bytes that are none."""
        request: dict[str, Any] = {
            "inputs": [self.input() for _ in range(self.random.choice((1, 1, 2, 0)))]
        }
        for _ in range(self.random.randrange(3)):
            request[self.random.choice(KEYS)] = self.value()
        return self.damaged(json.dumps(request).encode())

    def damaged(self, whole: bytes) -> bytes:
        """Return a body with some of its bytes changed, or as it was."""
        kind, at = self.random.randrange(10), self.random.randrange(max(1, len(whole)))
        if kind == 0:
            return whole[:at]
        if kind == 1:
            return whole[:at] + self.random.choice(RAW) + whole[at:]
        if kind == 2:
            return whole[:at] + self.random.randbytes(self.random.randrange(1, 9)) + whole[at + 4 :]
        return whole

    def headers(self, body: bytes) -> dict[str, str]:
        """Return headers, of which some are wrong."""
        pick, made = self.random.choice, {}
        if self.random.random() < 0.25:
            lengths = (
                0,
                1,
                len(body),
                len(body) - 1,
                len(body) + 1,
                -1,
                2**31,
                2**63,
                2**64,
                "x",
                "",
            )
            made["Inference-Header-Content-Length"] = str(pick(lengths))
        if self.random.random() < 0.08:
            made["Content-Encoding"] = pick(("gzip", "deflate", "br", "zstd", "identity", "x"))
        if self.random.random() < 0.08:
            made["Host"] = pick(("evil.example", "localhost:1", "", "a b", "127.0.0.1"))
        if self.random.random() < 0.08:
            made["Content-Type"] = pick(("text/plain", "application/json", ""))
        if self.random.random() < 0.05:
            made["Origin"] = pick(("null", "http://evil.example"))
        return made


def by_http(maker: Maker, address: tuple[str, int], paths: tuple[str, ...], **always: str) -> Any:
    """Send one malformed request and return the status, or how it ended."""
    body = maker.body()
    headers = maker.headers(body) | always
    if headers.get("Content-Encoding") == "gzip" and maker.random.random() < 0.5:
        body = gzip.compress(b"[" * maker.random.choice((10, 10_000, 1_000_000)))
    connection = http.client.HTTPConnection(*address, timeout=60)
    try:
        method = (
            "POST" if maker.random.random() < 0.9 else maker.random.choice(("GET", "PUT", "DELETE"))
        )
        path = maker.random.choice(paths)
        if maker.random.random() < 0.05:
            pieces = [body[at : at + 50] for at in range(0, len(body), 50)]
            connection.request(method, path, iter(pieces), headers, encode_chunked=True)
        else:
            connection.request(method, path, body, headers)
        response = connection.getresponse()
        answer = response.read()
        return response.status if response.status < 500 else f"{response.status} {answer[:200]!r}"
    finally:
        connection.close()


def by_grpc(maker: Maker, stub: Any) -> Any:
    """Send one malformed request by gRPC and return the status."""
    pick = maker.random.choice
    made = service_pb2.ModelInferRequest(model_name=pick(("sums", "sums", "words", "x", "")))
    for _ in range(pick((0, 1, 1, 1, 2))):
        one = made.inputs.add(name=pick(("x", "x", "w", "")), datatype=pick(TYPES))
        one.shape.extend(n for n in maker.shape() if isinstance(n, int) and abs(n) < 2**63)
        if maker.random.random() < 0.3:
            one.contents.fp32_contents.extend([1.0] * pick((0, 1, 8, 9)))
        if maker.random.random() < 0.2:
            one.parameters[pick(KEYS)].int64_param = pick((-1, 0, 2**62))
        if maker.random.random() < 0.7:
            made.raw_input_contents.append(maker.random.randbytes(pick((0, 1, 4, 31, 32, 33))))
    if maker.random.random() < 0.2:
        output = made.outputs.add(name=pick(("y", "same", "")))
        output.parameters[pick(KEYS)].int64_param = pick((-1, 0, 1, 2**31, 2**62))
    try:
        stub.ModelInfer(made, timeout=60)
    except grpc.RpcError as error:
        return error.code().name
    return "OK"


def fuzz(served: Stand, door: str, key: str, requests: int, seed: int, every: int = 100) -> Found:
    """Send so many malformed requests, a third to each door; look between whether all is right."""
    maker, found = Maker(seed), Found()
    server = _server(served)
    doors = _doors(maker, served, door, key)
    for number in range(requests):
        name, send = doors[number % len(doors)]
        found.sent[name] += 1
        try:
            status = send()
        except (OSError, http.client.HTTPException, UnicodeError) as error:
            status = type(error).__name__
        found.statuses[name, status] += 1
        if _is_wrong(status):
            found.wrong.append(f"request {number} of seed {seed}, {name}: {status}")
        if number % every == every - 1 or number == requests - 1:
            _look(served, door, server, found, number)
    return found


def _doors(maker: Maker, served: Stand, door: str, key: str) -> list[tuple[str, Callable[[], Any]]]:
    stub = service_pb2_grpc.GRPCInferenceServiceStub(grpc.insecure_channel(served.endpoint.grpc))
    host, _, port = door.removeprefix("http://").partition(":")
    own = (served.endpoint.host, served.endpoint.http_port)
    asks = ("/v1/completions", "/v1/chat/completions", "/v1/models", "/health", "/")
    secret = {"Authorization": f"Bearer {key}"}
    return [
        ("http", lambda: by_http(maker, own, PATHS)),
        ("grpc", lambda: by_grpc(maker, stub)),
        ("openai", lambda: by_http(maker, (host, int(port)), asks, **secret)),
    ]


def _is_wrong(status: Any) -> bool:
    """Tell whether an answer says that the server failed, or ended."""
    if isinstance(status, str) and status.startswith("5"):
        return not status.startswith("501")
    return status in ("UNAVAILABLE", "UNKNOWN", "ConnectionRefusedError", "RemoteDisconnected")


def _look(served: Stand, door: str, server: psutil.Process, found: Found, number: int) -> None:
    right = False
    with suppress(Exception):
        host, _, port = door.removeprefix("http://").partition(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=30)
        connection.request("GET", "/health")
        right = served.is_right() and connection.getresponse().status == 200
        connection.close()
    if not right or not server.is_running():
        found.wrong.append(f"after request {number} the servers do not answer rightly")
    found.checks += 1


def _server(served: Stand) -> psutil.Process:
    flag = f"--grpc-port={served.endpoint.grpc_port}"
    for process in psutil.process_iter(["cmdline"]):
        if flag in (process.info["cmdline"] or ()):
            return process
    raise AssertionError("there is no Triton")


def run(home: Path, requests: int, seed: int) -> Found:
    """Start the servers in a home of their own, and send the requests."""
    with stand(home) as served, door_running(served.installation.home, served.endpoint) as door:
        secret = create_secret()
        new = partial(add_key, name="fuzz", tokens_per_minute=10**9, secret=secret, now=time.time())
        update_keys(served.installation.home / KEYS_FILE, new)
        return fuzz(served, door, secret, requests, seed)


def main() -> int:
    """Run it, and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="millrace-fuzz-") as home:
        found = run(Path(home), options.requests, options.seed)
    answers = {
        f"{door} {status}": n for (door, status), n in sorted(found.statuses.items(), key=str)
    }
    print(json.dumps({"sent": found.sent, "checks": found.checks, "answers": answers}, indent=1))  # noqa: T201
    for line in found.wrong:
        print(line)  # noqa: T201
    return 1 if found.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
