import json
from typing import Any

import pytest

from millrace.flows.triggers.webhook_delivery import (
    ID_HEADER,
    MAX_BYTES,
    MAX_SEEN,
    SIGNATURE_HEADER,
    TIMESTAMP_HEADER,
    WINDOW_SECONDS,
    DeliveryResult,
    SeenDeliveries,
    check_delivery,
    compute_signature,
)

NOW = 1_800_000_000.0
SECRET = "kept"


def _event(action: str = "created", alias: str = "champion", **data: str) -> bytes:
    told = {"name": "digits", "alias": alias, "version": "3"} | data
    return json.dumps({"entity": "model_version_alias", "action": action, "data": told}).encode()


def _checked(body: bytes, seen: SeenDeliveries | None = None, **changed: Any) -> DeliveryResult:
    """Check a delivery that is right but for what is `changed`: at, id, secret, or a header."""
    delivery, at = changed.pop("id", "one"), str(changed.pop("at", int(NOW)))
    headers = {
        ID_HEADER: delivery,
        TIMESTAMP_HEADER: at,
        SIGNATURE_HEADER: compute_signature(changed.pop("secret", SECRET), delivery, at, body),
    }
    seen = seen if seen is not None else SeenDeliveries(since=0)
    return check_delivery(headers | changed.pop("headers", {}), body, NOW, SECRET, seen)


def test_a_new_champion_is_released() -> None:
    result = _checked(_event())
    assert (result.model, result.change) == ("digits", "champion of digits → version 3")


def test_a_champion_that_is_removed_is_released() -> None:
    result = _checked(_event("deleted"))
    assert (result.model, result.change) == ("digits", "champion of digits removed")


def test_the_signature_is_that_of_mlflow() -> None:
    from mlflow.webhooks.delivery import _generate_hmac_signature

    theirs = _generate_hmac_signature(SECRET, "one", "1800000000", "{}")
    assert compute_signature(SECRET, "one", "1800000000", b"{}") == theirs


@pytest.mark.parametrize(
    "body",
    [_event(alias="challenger"), json.dumps({"entity": "prompt", "data": {}}).encode()],
)
def test_what_is_no_champion_is_taken_and_left(body: bytes) -> None:
    result = _checked(body)
    assert (result.status, result.model) == (200, None)


@pytest.mark.parametrize(
    "changed",
    [
        {"secret": "guessed"},
        {"headers": {SIGNATURE_HEADER: ""}},
        {"headers": {SIGNATURE_HEADER: "v1,ü"}},
        {"headers": {ID_HEADER: "two"}},
        {"headers": {TIMESTAMP_HEADER: str(int(NOW) + 1)}},
        {"headers": {TIMESTAMP_HEADER: "soon"}},
    ],
)
def test_what_is_not_signed_by_mlflow_is_refused(changed: dict[str, Any]) -> None:
    assert _checked(_event(), **changed).status == 401


def test_a_request_without_headers_is_refused() -> None:
    assert check_delivery({}, _event(), NOW, SECRET, SeenDeliveries(0)).status == 401


@pytest.mark.parametrize("seconds", [-WINDOW_SECONDS - 1, WINDOW_SECONDS + 1])
def test_an_old_or_future_timestamp_is_refused(seconds: float) -> None:
    assert _checked(_event(), at=int(NOW + seconds)).status == 400


@pytest.mark.parametrize("at", ["", "soon", "-1", "1e9", "²", "9" * 30])
def test_a_timestamp_that_is_no_number_is_refused(at: str) -> None:
    assert _checked(_event(), at=at).status == 400


def test_what_was_signed_before_the_receiver_started_is_refused() -> None:
    assert _checked(_event(), SeenDeliveries(since=int(NOW) - 1), at=int(NOW) - 2).status == 400
    assert _checked(_event(), SeenDeliveries(since=int(NOW)), at=int(NOW)).status == 202


def test_a_replay_is_refused() -> None:
    seen = SeenDeliveries(0)
    seen.add("one", int(NOW), NOW)
    assert _checked(_event(), seen).status == 409
    assert _checked(_event(), seen, id="two").status == 202


@pytest.mark.parametrize("declared", [str(MAX_BYTES + 1), "9" * 5000])
def test_an_oversized_body_is_refused_by_its_header_and_as_it_is_read(declared: str) -> None:
    assert _checked(b"", headers={"content-length": declared}).status == 413
    assert _checked(_event(name="x" * MAX_BYTES)).status == 413


@pytest.mark.parametrize(
    "body", [b"", b"\xff", b"[]", b"null", b'{"entity": 1}', b"[" * 50_000, _event()[:-1]]
)
def test_a_body_that_is_no_event_is_refused(body: bytes) -> None:
    assert _checked(body).status == 400


def test_a_name_cannot_write_a_second_line() -> None:
    change = _checked(_event(name="a\nERROR b" + "c" * 1000)).change
    assert "ERROR b" in change
    assert "\n" not in change
    assert len(change) < 200


def test_only_so_many_ids_are_kept_and_none_that_is_forgotten_comes_back() -> None:
    seen = SeenDeliveries(0)
    for number in range(MAX_SEEN + 50):
        seen.add(f"id-{number}", int(NOW) - 100 + number // 100, NOW)
        assert len(seen) <= MAX_SEEN
    assert "id-0" not in seen
    assert _checked(_event(), seen, id="id-0", at=int(NOW) - 100).status == 400
    assert _checked(_event(), seen, id="new").status == 202


def test_ids_are_forgotten_when_they_would_be_too_old() -> None:
    seen = SeenDeliveries(0)
    seen.add("one", int(NOW), NOW)
    seen.add("two", int(NOW) + 400, NOW + 400)
    assert "one" not in seen
    assert "two" in seen
