"""A process of another user of this machine, which sends requests."""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

STRANGER = """
import json, sys, urllib.request, urllib.error
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
for line in sys.stdin:
    asked = json.loads(line)
    body = asked["body"].encode() if asked["body"] is not None else None
    request = urllib.request.Request(asked["url"], body, asked["headers"], method=asked["method"])
    try:
        with opener.open(request, timeout=60) as response:
            status, text = response.status, response.read(100_000).decode(errors="replace")
    except urllib.error.HTTPError as error:
        status, text = error.code, error.read(100_000).decode(errors="replace")
    except OSError as error:
        status, text = 0, str(error)
    print(json.dumps([status, text]), flush=True)
"""

UNREAD = 92
"""Exit code of curl if the answer came before the server had read all of the request. Where it was
still sending, it drops the answer."""


@dataclass(frozen=True)
class Ask:
    """A request."""

    method: str
    path: str
    body: str | None = None
    headers: Mapping[str, str] | None = None


def as_stranger(address: str, asked: Sequence[Ask]) -> list[tuple[int, str]]:
    """Send requests as the user `nobody`, and return status and text of each."""
    python = shutil.which("python3", path="/usr/local/bin:/usr/bin:/bin")
    assert python is not None
    lines = [
        json.dumps(
            {
                "url": address + each.path,
                "method": each.method,
                "body": each.body,
                "headers": dict(each.headers or {}),
            }
        )
        for each in asked
    ]
    done = _run([python, "-c", STRANGER], "\n".join(lines).encode())
    return [(status, text) for status, text in map(json.loads, done.splitlines())]


def called_by_stranger(address: str, method: str, message: bytes) -> str:
    """Call gRPC as that user, by curl; return the headers and trailers of the answer."""
    curl = shutil.which("curl", path="/usr/local/bin:/usr/bin:/bin")
    assert curl is not None, "install curl"
    words = ("-sS", "--http2-prior-knowledge", "--max-time", "30", "-D", "-", "-o", "/dev/null")
    headers = ("-H", "content-type: application/grpc", "-H", "te: trailers")
    url = f"http://{address}/inference.GRPCInferenceService/{method}"
    framed = b"\0" + len(message).to_bytes(4) + message
    command = [curl, *words, *headers, "--data-binary", "@-", url]
    for _ in range(30):
        if answer := _run(command, framed, expected=(0, UNREAD)).decode():
            return answer
        time.sleep(0.3)
    raise AssertionError(f"{method} was never answered")


def _run(command: Sequence[str], given: bytes, expected: Collection[int] = (0,)) -> bytes:
    user = "nobody" if os.getuid() == 0 else None
    options = {"cwd": "/", "env": {}, "timeout": 500}
    done = subprocess.run(command, input=given, capture_output=True, user=user, **options)
    assert done.returncode in expected, done.stderr
    return done.stdout
