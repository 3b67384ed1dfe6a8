"""One delivery of MLflow's webhook judged: is it MLflow's, of now, not a replay, of a champion?

MLflow signs `id.timestamp.body` with a secret that it shares with us (HMAC-SHA256). It tries a
delivery again, under the same id, after a lost connection and after 429, 500, 502, 503 and 504
only, so that none of the refusals here makes it come back.
"""

import base64
import hashlib
import hmac
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from millrace.models.registry.mlflow_registry import CHAMPION

MOST_BYTES = 64 * 2**10
WINDOW_SECONDS = 300.0
MOST_SEEN = 4096

ID_HEADER = "x-mlflow-delivery-id"
TIMESTAMP_HEADER = "x-mlflow-timestamp"
SIGNATURE_HEADER = "x-mlflow-signature"

_ENTITY = "model_version_alias"
_SHOWN = 100


@dataclass(frozen=True)
class Change:
    """What a delivery says has changed."""

    model: str
    text: str


@dataclass(frozen=True)
class Verdict:
    """What to answer to a delivery.

    Attributes:
        status: HTTP status.
        said: the reason, for the answer's body.
        change: what to release; None if there is nothing to.
    """

    status: int
    said: str
    change: Change | None = None

    @property
    def authentic(self) -> bool:
        """Whether the delivery came from MLflow, now and for the first time."""
        return self.status < 300


@dataclass
class Seen:
    """The deliveries that were taken, kept for as long as their timestamps would be accepted.

    Attributes:
        since: deliveries that were signed before this second are too old. It begins with this
            process, which knows of no earlier ids; the release at its start has seen what those
            tell. It moves when there are more ids than are kept.
    """

    since: int
    _timestamps: dict[str, int] = field(default_factory=dict, init=False)

    def __contains__(self, delivery: str) -> bool:
        return delivery in self._timestamps

    def __len__(self) -> int:
        return len(self._timestamps)

    def oldest(self, now: float) -> float:
        """Return the earliest timestamp that is accepted."""
        return max(self.since, now - WINDOW_SECONDS)

    def add(self, delivery: str, timestamp: int, now: float) -> None:
        """Remember a delivery; forget those that are too old by now."""
        self._timestamps[delivery] = timestamp
        if len(self._timestamps) > MOST_SEEN:
            self.since = min(self._timestamps.values()) + 1
        oldest = self.oldest(now)
        self._timestamps = {each: at for each, at in self._timestamps.items() if at >= oldest}


def too_large(headers: Mapping[str, str], body: bytes) -> bool:
    """Return whether a body is larger than MLflow's are, by its header or as far as it was read."""
    declared = headers.get("content-length", "")
    return len(body) > MOST_BYTES or (declared.isdecimal() and int(declared[:20]) > MOST_BYTES)


def judge_delivery(
    headers: Mapping[str, str], body: bytes, now: float, secret: str, seen: Seen
) -> Verdict:
    """Judge a delivery; `seen` is looked at and left as it is.

    Args:
        headers: of the request, their names in small letters.
        body: of the request, as it was signed.
        now: seconds since the epoch.
        secret: what MLflow signs with.
        seen: deliveries that were taken before.
    """
    if too_large(headers, body):
        return Verdict(413, f"more than {MOST_BYTES} bytes")
    delivery, timestamp = headers.get(ID_HEADER, ""), headers.get(TIMESTAMP_HEADER, "")
    expected = signature(secret, delivery, timestamp, body)
    if not hmac.compare_digest(headers.get(SIGNATURE_HEADER, "").encode(), expected.encode()):
        return Verdict(401, "the signature is wrong")
    if not re.fullmatch(r"[0-9]{1,12}", timestamp):
        return Verdict(400, "the timestamp is not a number of seconds")
    if not seen.oldest(now) <= int(timestamp) <= now + WINDOW_SECONDS:
        return Verdict(400, "the timestamp is too far from now")
    if delivery in seen:
        return Verdict(409, "this delivery was taken before")
    return _read(body)


def signature(secret: str, delivery: str, timestamp: str, body: bytes) -> str:
    """Return the signature that MLflow gives a delivery."""
    signed = f"{delivery}.{timestamp}.".encode() + body
    digest = hmac.new(secret.encode(), signed, hashlib.sha256).digest()
    return "v1," + base64.b64encode(digest).decode()


def _read(body: bytes) -> Verdict:
    try:
        event = json.loads(body)
        data = event["data"]
        if event["entity"] != _ENTITY or data["alias"] != CHAMPION:
            return Verdict(200, "no champion has changed")
        model = str(data["name"])
        created = event["action"] == "created"
        said = f" → version {_one_line(data['version'])}" if created else " removed"
    except (ValueError, TypeError, KeyError, RecursionError):
        return Verdict(400, "the body is no event of MLflow")
    return Verdict(
        202, "released at once", Change(model, f"{CHAMPION} of {_one_line(model)}{said}")
    )


def _one_line(value: object) -> str:
    return " ".join(str(value).split())[:_SHOWN]
