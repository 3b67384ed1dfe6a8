"""What clients see now: the tail of the guard's record, goodput, and cost."""

from pathlib import Path

import pytest

from millrace.models.config.slo_spec import SloSpec
from millrace.serving.guard import arrivals_tail
from millrace.serving.guard.arrivals_tail import QUIET_LOOKS, ArrivalsTail
from millrace.serving.triton.client_load import ClientLoad, Terms, client_loads, share_below
from millrace.serving.triton.recent_requests import RecentRequests
from millrace.serving.triton.served_load import (
    BATCHES,
    COMPUTE_US,
    SUCCESS,
    TOKENS,
    TPOT_US,
    TTFT_US,
    Change,
    Look,
)

SECONDS = 4.0


def line(
    model: str = "m", microseconds: str = "1000", status: str = "0", protocol: str = "grpc"
) -> str:
    return f"1795608000000000 {model} 1 {protocol} 9 {microseconds} {status} .\n"


class Record:
    """A file like the guard's, and what is recent of it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.write_text(line("earlier"))
        self.recent = RecentRequests(ArrivalsTail(path), window=6.0)
        self.recent.look(0.0)

    def add(self, *lines: str, at: float = SECONDS) -> None:
        with self.path.open("a") as file:
            file.write("".join(lines))
        self.recent.look(at)

    def loads(self, terms: dict[str, Terms] | None = None, **counters: float) -> list[ClientLoad]:
        """Return the loads, with counters of model m."""
        return client_loads(self.recent, [change(**counters)], terms or {})


@pytest.fixture
def record(tmp_path: Path) -> Record:
    return Record(tmp_path / "8000.log")


def change(model: str = "m", **counters: float) -> Change:
    labels = frozenset({("model", model), ("version", "1")})
    after = {(name, labels): value for name, value in counters.items()}
    return Change(Look(0.0, {}), Look(SECONDS, {(SUCCESS, labels): 0.0, **after}))


def histogram(name: str, counts: dict[str, float], model: str = "m") -> Change:
    own = frozenset({("model", model), ("version", "1")})
    samples = {(f"{name}_bucket", own | {("le", le)}): value for le, value in counts.items()}
    return Change(Look(0.0, {}), Look(SECONDS, samples))


def test_requests_are_counted_by_model_with_those_to_its_columns(record: Record) -> None:
    record.add(line("b"), line("a.columns", protocol="http", status="200"), line("a"))
    assert [(each.model, each.requests_per_second) for each in record.loads()] == [
        ("a", 2 / SECONDS),
        ("b", 1 / SECONDS),
    ]


@pytest.mark.parametrize(
    ("protocol", "status", "microseconds"),
    [("grpc", "4", "1000"), ("http", "503", "1000"), ("grpc", "-", "-"), ("http", "200", "-")],
)
def test_a_failed_request_has_no_latency(
    record: Record, protocol: str, status: str, microseconds: str
) -> None:
    record.add(line(protocol=protocol, status=status, microseconds=microseconds), line())
    (load,) = record.loads({"m": Terms(SloSpec(rate=1, p99_ms=10))})
    assert load.failed_per_second == 1 / SECONDS
    assert (load.p50_ms, load.p99_ms) == (1.0, 1.0)
    assert load.goodput_per_second == 1 / SECONDS


def test_without_answers_there_is_no_latency(record: Record) -> None:
    record.add(line(status="4"))
    (load,) = record.loads()
    assert (load.p50_ms, load.p99_ms, load.goodput_per_second) == (None, None, None)


def test_goodput_is_what_was_answered_within_the_goal(record: Record) -> None:
    record.add(*(line(microseconds=each) for each in ("9000", "10000", "11000", "12000")))
    (load,) = record.loads({"m": Terms(SloSpec(rate=1, p99_ms=10))})
    assert load.goodput_per_second == 2 / SECONDS


def test_goodput_of_streams_is_that_of_the_worse_bound(record: Record) -> None:
    record.add(line(), line())
    goal = SloSpec(rate=1, ttft_p99_ms=100, tpot_p99_ms=10)
    first = histogram(TTFT_US, {"50000": 3, "100000": 4, "+Inf": 4})
    each = histogram(TPOT_US, {"10000": 1, "20000": 4, "+Inf": 4})
    (load,) = client_loads(record.recent, [first, each], {"m": Terms(goal)})
    assert load.goodput_per_second == pytest.approx(0.25 * 2 / SECONDS)
    (load,) = client_loads(record.recent, [], {"m": Terms(goal)})
    assert load.goodput_per_second is None


def test_the_machines_price_is_shared_by_the_time_that_models_compute(record: Record) -> None:
    record.add(*[line("a")] * 8, *[line("b")] * 4)
    # a: 8 requests in 2 batches of 1 ms; b: 4 batches of 1.5 ms
    changes = [
        change("a", **{SUCCESS: 8, COMPUTE_US: 8000, BATCHES: 2}),
        change("b", **{SUCCESS: 4, COMPUTE_US: 6000, BATCHES: 4, TOKENS: 400}),
    ]
    a, b = client_loads(record.recent, changes, {"a": Terms(price_per_hour=3.6)})
    assert a.cost_per_million == pytest.approx(1e6 * 0.001 * (2 / 8) / 2)
    assert b.cost_per_million == pytest.approx(1e6 * 0.001 * (6 / 8) / 1)
    assert a.cost_per_million_tokens is None
    assert b.cost_per_million_tokens == pytest.approx(1e6 * 0.001 * (6 / 8) / 100)


def test_without_a_price_there_is_no_cost(record: Record) -> None:
    record.add(line())
    (load,) = record.loads(**{SUCCESS: 1, COMPUTE_US: 1000, BATCHES: 1})
    assert load.cost_per_million is None


def test_old_requests_are_forgotten(record: Record) -> None:
    for second in (2, 4, 6, 8):
        record.add(line(), at=second)
    assert record.recent.seconds == 6
    (load,) = record.loads()
    assert load.requests_per_second == 3 / 6


def test_nothing_is_known_where_arrivals_are_not_recorded(tmp_path: Path) -> None:
    recent = RecentRequests(ArrivalsTail(tmp_path / "8000.log"), 6.0)
    recent.look(0.0)
    recent.look(1.0)
    assert client_loads(recent, [], {}) == []


def test_a_file_that_appears_is_read_from_its_start(tmp_path: Path) -> None:
    path = tmp_path / "8000.log"
    tail = ArrivalsTail(path)
    assert len(tail.read()) == 0
    path.write_text(line())
    assert len(tail.read()) == 1


def test_a_line_counts_once_it_is_whole(record: Record) -> None:
    tail, whole = ArrivalsTail(record.path), line()
    tail.read()
    for part, count in ((whole[:20], 0), (whole[20:], 1), ("", 0)):
        with record.path.open("a") as file:
            file.write(part)
        assert len(tail.read()) == count


def test_bytes_without_an_end_of_line_do_not_stop_the_reading(
    record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrivals_tail, "MOST_BYTES", 100)
    tail = ArrivalsTail(record.path)
    tail.read()
    with record.path.open("a") as file:
        file.write("x" * 250 + "\n" + line())
    assert sum(len(tail.read()) for _ in range(4)) == 1


def test_a_rotated_file_is_followed(record: Record) -> None:
    tail = ArrivalsTail(record.path)
    tail.read()
    record.path.rename(record.path.with_name("1-8000.log"))
    record.path.write_text(line("x") + line("y"))
    with record.path.with_name("1-8000.log").open("a") as old:
        old.write(line("w"))
    assert tail.read()["model"].to_pylist() == ["w", "x", "y"]
    for _ in range(QUIET_LOOKS):
        with record.path.with_name("1-8000.log").open("a") as old:
            old.write(line("late"))
        assert tail.read()["model"].to_pylist() == ["late"]
    for _ in range(QUIET_LOOKS):
        assert len(tail.read()) == 0
    with record.path.open("a") as new:
        new.write(line("z"))
    assert tail.read()["model"].to_pylist() == ["z"]


@pytest.mark.parametrize(
    ("bound", "share"), [(0.0, 0.0), (5.0, 0.25), (10.0, 0.5), (15.0, 0.625), (20.0, 0.75)]
)
def test_the_share_below_a_bound_is_interpolated(bound: float, share: float) -> None:
    buckets = {10.0: 2.0, 20.0: 3.0, float("inf"): 4.0}
    assert share_below(buckets, bound) == pytest.approx(share)
    assert share_below(buckets, 1e9) == 0.75
    assert share_below({}, bound) is None
    assert share_below({float("inf"): 0.0}, bound) is None
