"""Triton's trace of each request, as it writes it."""

import json
from pathlib import Path
from threading import Timer
from typing import Any

import pytest

from millrace.serving.triton.request_trace import (
    Traced,
    read_trace,
    trace_flags,
    wait_for_trace,
)

BEGAN = 5_000_000_000
"""Nanoseconds of the clock when the traced requests began."""
NAMES = {
    "GRPC_WAITREAD_START": -5,
    "GRPC_WAITREAD_END": 0,
    "REQUEST_START": 1,
    "QUEUE_START": 2,
    "COMPUTE_START": 10,
    "COMPUTE_INPUT_END": 12,
    "COMPUTE_OUTPUT_START": 18,
    "INFER_RESPONSE_COMPLETE": 19,
    "COMPUTE_END": 20,
    "GRPC_SEND_START": 21,
    "GRPC_SEND_END": 22,
}
"""What Triton notes of a request, and the milliseconds from when it was read."""


def entries(
    number: int, at: int, model: str = "m", grpc: bool = True, **others: int
) -> list[dict[str, Any]]:
    """Return what a trace has of a request that was read at a millisecond.

    Args:
        number: its id.
        at: the millisecond.
        model: its model.
        grpc: whether it came over gRPC.
        others: milliseconds of what was at another time than in `NAMES`, from when it was read.
    """
    times = {name: ms for name, ms in NAMES.items() if grpc or not name.startswith("GRPC")}
    stamps = [
        {"name": name, "ns": BEGAN + (at + ms) * 1_000_000}
        for name, ms in {**times, **others}.items()
    ]
    return [
        {"id": number, "model_name": model, "model_version": 1},
        *({"id": number, "timestamps": [stamp]} for stamp in stamps),
    ]


TRACE = json.dumps(
    [
        *entries(1, 0, grpc=False),
        *entries(4, 104, COMPUTE_START=6, COMPUTE_END=17, GRPC_SEND_END=30),
        *entries(2, 100),
        *entries(3, 101, model="other"),
    ]
)
"""Request 1 warms the model up; 2 and 4 are one batch of it; 3 is of another model."""


def test_requests_are_told_by_model_in_the_order_in_which_they_were_received() -> None:
    found = read_trace(TRACE)
    assert set(found) == {"m", "other"}
    assert found["m"].received == pytest.approx([5.100, 5.104])
    assert found["other"].received == pytest.approx([5.101])
    assert (found["m"].model, found["other"].model) == ("m", "other")


def test_each_time_of_a_request_is_read() -> None:
    found = read_trace(TRACE)["m"]
    assert found.queued == pytest.approx([5.102, 5.106])
    assert found.started == pytest.approx([5.110, 5.110])
    assert found.answered == pytest.approx([5.119, 5.123])
    assert found.ended == pytest.approx([5.120, 5.121])
    assert found.sent == pytest.approx([5.122, 5.134])


def test_requests_of_one_batch_start_at_the_same_time() -> None:
    found = read_trace(TRACE)["m"]
    assert found.started[0] == found.started[1]


@pytest.mark.parametrize(
    "missing", ["GRPC_WAITREAD_END", "INFER_RESPONSE_COMPLETE", "COMPUTE_END", "GRPC_SEND_END"]
)
def test_a_request_that_was_not_answered_over_grpc_is_left_out(missing: str) -> None:
    whole, cut = entries(1, 0), entries(2, 50)
    cut = [each for each in cut if missing not in json.dumps(each)]
    found = read_trace(json.dumps([*whole, *cut]))["m"]
    assert found.received == pytest.approx([5.0])


def test_a_model_without_such_requests_is_not_in_the_trace() -> None:
    assert read_trace(json.dumps(entries(1, 0, grpc=False))) == {}
    assert read_trace("[]") == {}


def test_an_entry_may_have_several_times() -> None:
    first, *others = entries(1, 7)
    stamps = [stamp for each in others for stamp in each["timestamps"]]
    (found,) = read_trace(json.dumps([{**first, "timestamps": stamps}])).values()
    assert found.sent == pytest.approx([5.029])


def test_a_part_has_the_requests_between_two_numbers() -> None:
    found = read_trace(json.dumps([each for n in range(5) for each in entries(n, 100 * n)]))["m"]
    part = found.part(1, 3)
    assert part.model == "m"
    for name in ("received", "queued", "started", "answered", "ended", "sent"):
        assert getattr(part, name).tolist() == getattr(found, name)[1:3].tolist()
    assert isinstance(part, Traced)
    assert len(found.part(3, 5).sent) == 2


@pytest.mark.parametrize("text", ["", "garbage", TRACE[:-1]])
def test_what_is_no_json_is_no_trace(text: str) -> None:
    with pytest.raises(ValueError, match="line 1 column"):
        read_trace(text)


@pytest.mark.parametrize(
    "values",
    [
        {"a": 1},
        [{"model_name": "m"}],
        [{"id": 1, "timestamps": [{"name": "QUEUE_START"}]}],
        entries(1, 0)[1:],
    ],
    ids=["no list", "no id", "no time", "no model"],
)
def test_other_json_is_no_trace(values: object) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_trace(json.dumps(values))


def test_triton_is_told_to_trace_every_request_into_the_file() -> None:
    assert trace_flags(Path("/tmp/t.json")) == [
        "--trace-config=level=TIMESTAMPS",
        "--trace-config=rate=1",
        "--trace-config=count=-1",
        "--trace-config=mode=triton",
        "--trace-config=triton,file=/tmp/t.json",
    ]


@pytest.mark.parametrize("text", [TRACE, TRACE.rstrip().removesuffix("]")])
def test_a_trace_is_read_whether_or_not_triton_has_ended(tmp_path: Path, text: str) -> None:
    file = tmp_path / "trace.json"
    file.write_text(text.rstrip())
    assert list(wait_for_trace(file)) == list(read_trace(TRACE))


def test_a_trace_is_waited_for_until_it_is_whole(tmp_path: Path) -> None:
    file, text = tmp_path / "trace.json", TRACE.rstrip()
    writers = [Timer(0.1, file.write_text, [text[:-20]]), Timer(0.3, file.write_text, [text])]
    for writer in writers:
        writer.start()
    assert list(wait_for_trace(file)) == list(read_trace(TRACE))
    assert all(writer.join() is None for writer in writers)


def test_a_trace_that_is_never_written_has_no_requests(tmp_path: Path) -> None:
    assert wait_for_trace(tmp_path / "trace.json", seconds=0.2) == {}
