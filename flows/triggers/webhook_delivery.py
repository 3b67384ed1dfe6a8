"""Receives the deliveries of MLflow's webhook, and checks them.

A delivery must be authentic, recent, not a replay, and about the alias champion.

MLflow signs `id.timestamp.body` with a secret that it shares with Millrace (HMAC-SHA256). MLflow
retries a delivery, with the same id, only after a lost connection or the status 429, 500, 502, 503
or 504. So none of the refusals here makes MLflow retry.
"""

import asyncio
import base64
import hashlib
import hmac
import json
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from fastapi import Request, Response
from starlette.requests import ClientDisconnect

from millrace.models.registry.version_files import CHAMPION

BODY_SECONDS = 5.0
MAX_BYTES = 64 * 2**10
WINDOW_SECONDS = 300.0
MAX_SEEN = 4096
MAX_SHOWN = 100

ID_HEADER = "x-mlflow-delivery-id"
TIMESTAMP_HEADER = "x-mlflow-timestamp"
SIGNATURE_HEADER = "x-mlflow-signature"

RequestRelease = Callable[[str | None, str], None]


@dataclass(frozen=True)
class DeliveryResult:
    """The response to a delivery.

    Attributes:
        status: HTTP status.
        reason: the body of the response.
        model: the model to release; None if the delivery requests no release.
        change: the change of the model's alias.
    """

    status: int
    reason: str
    model: str | None = None
    change: str = ""

    @property
    def is_authentic(self) -> bool:
        """Whether the delivery is from MLflow, recent and not a replay."""
        return self.status < 300


@dataclass
class SeenDeliveries:
    """The accepted deliveries, stored for as long as their timestamps would be accepted.

    Attributes:
        since: a time in seconds since the epoch; deliveries with an earlier timestamp are refused.
            At first it is the start of this process, which does not know the ids of earlier
            deliveries. They are not lost: this process also releases once when it starts. `since`
            moves forward when there are more than `MAX_SEEN` ids.
    """

    since: int
    _timestamps: dict[str, int] = field(default_factory=dict, init=False)

    def __contains__(self, delivery: str) -> bool:
        return delivery in self._timestamps

    def __len__(self) -> int:
        return len(self._timestamps)

    def oldest(self, now: float) -> float:
        """Return the earliest timestamp that is accepted at the time `now`."""
        return max(self.since, now - WINDOW_SECONDS)

    def add(self, delivery: str, timestamp: int, now: float) -> None:
        """Store a delivery, and drop those that are too old by now."""
        self._timestamps[delivery] = timestamp
        if len(self._timestamps) > MAX_SEEN:
            self.since = min(self._timestamps.values()) + 1
        oldest = self.oldest(now)
        self._timestamps = {each: at for each, at in self._timestamps.items() if at >= oldest}


def is_too_large(headers: Mapping[str, str], body: bytes) -> bool:
    """Return whether a body exceeds `MAX_BYTES`, by its content-length or by the bytes read."""
    declared = headers.get("content-length", "")
    return len(body) > MAX_BYTES or (declared.isdecimal() and int(declared[:20]) > MAX_BYTES)


def check_delivery(
    headers: Mapping[str, str], body: bytes, now: float, secret: str, seen: SeenDeliveries
) -> DeliveryResult:
    """Check a delivery; `seen` is not changed.

    Args:
        headers: the headers of the request, with lower-case names.
        body: the body of the request, as it was signed.
        now: the time in seconds since the epoch.
        secret: the key of MLflow's signatures.
        seen: the deliveries that were accepted before.
    """
    if is_too_large(headers, body):
        return DeliveryResult(413, f"the body has more than {MAX_BYTES} bytes")
    delivery, timestamp = headers.get(ID_HEADER, ""), headers.get(TIMESTAMP_HEADER, "")
    expected = compute_signature(secret, delivery, timestamp, body)
    if not hmac.compare_digest(headers.get(SIGNATURE_HEADER, "").encode(), expected.encode()):
        return DeliveryResult(401, "the signature is wrong")
    if not re.fullmatch(r"[0-9]{1,12}", timestamp):
        return DeliveryResult(400, "the timestamp is not a number of seconds")
    if not seen.oldest(now) <= int(timestamp) <= now + WINDOW_SECONDS:
        return DeliveryResult(400, "the timestamp is too far from now")
    if delivery in seen:
        return DeliveryResult(409, "this delivery was received before")
    return _read_event(body)


def compute_signature(secret: str, delivery: str, timestamp: str, body: bytes) -> str:
    """Return the signature with which MLflow signs a delivery."""
    signed = f"{delivery}.{timestamp}.".encode() + body
    digest = hmac.new(secret.encode(), signed, hashlib.sha256).digest()
    return "v1," + base64.b64encode(digest).decode()


def _read_event(body: bytes) -> DeliveryResult:
    try:
        event = json.loads(body)
        data = event["data"]
        if event["entity"] != "model_version_alias" or data["alias"] != CHAMPION:
            return DeliveryResult(200, "no champion has changed")
        model = str(data["name"])
        is_created = event["action"] == "created"
        moved = f" → version {_one_line(data['version'])}" if is_created else " removed"
    except (ValueError, TypeError, KeyError, RecursionError):
        return DeliveryResult(400, "the body is not an event from MLflow")
    return DeliveryResult(
        202, "released at once", model, f"{CHAMPION} of {_one_line(model)}{moved}"
    )


def _one_line(value: object) -> str:
    return " ".join(str(value).split())[:MAX_SHOWN]


class Receiver:
    """Receives deliveries, and requests a release when a champion has changed.

    Args:
        secret: the key of MLflow's signatures.
        request_release: a function that requests a release, with the model and the reason.
        clock: a function that returns seconds since the epoch.
    """

    def __init__(
        self,
        secret: str,
        request_release: RequestRelease,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._secret, self._request_release, self._clock = secret, request_release, clock
        self._seen = SeenDeliveries(since=int(clock()))

    async def receive(self, request: Request) -> Response:
        """Respond to one delivery."""
        try:
            async with asyncio.timeout(BODY_SECONDS):
                body = await _read_body(request)
        except TimeoutError:
            return Response("the body arrived too slowly\n", 408)
        except ClientDisconnect:
            return Response(status_code=400)
        headers, now = request.headers, self._clock()
        result = check_delivery(headers, body, now, self._secret, self._seen)
        if result.is_authentic:
            self._seen.add(headers[ID_HEADER], int(headers[TIMESTAMP_HEADER]), now)
        if result.model is not None:
            self._request_release(result.model, f"webhook: {result.change}")
        return Response(result.reason + "\n", result.status)


async def _read_body(request: Request) -> bytes:
    """Read a body up to `MAX_BYTES`; read nothing if the header content-length declares more."""
    body = bytearray()
    if not is_too_large(request.headers, b""):
        async for chunk in request.stream():
            body += chunk
            if len(body) > MAX_BYTES:
                break
    return bytes(body)
