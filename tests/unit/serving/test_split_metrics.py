import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import repeat

import pytest

from millrace.models.common.errors import TransientError
from millrace.models.common.installation import Endpoint
from millrace.models.config.rollout_spec import RolloutSpec
from millrace.serving.rollout import split_metrics
from millrace.serving.rollout.judge import Arm, Counts
from millrace.serving.rollout.rollout import first_split
from millrace.serving.rollout.split_metrics import (
    Reading,
    count_step,
    parse_counters,
    read_counters,
)

SPLIT = first_split("m", 1, 2, RolloutSpec(kind="canary"), now=1000.5)


def lines(requests: float, *, instance: str = "a", began: str = "1000.5", model: str = "m") -> str:
    """Return a metrics page on which every counter of the candidate is a multiple of `requests`."""
    labels = f'arm="candidate",began="{began}",instance="{instance}",model="{model}",version="2"'
    names = {
        "flushes_done": 1.0,
        "requests": 1.0,
        "failures": 0.1,
        "latency_seconds": 0.01,
        "log_latency_blocks": 0.0625,
        "log_latency": 0.5,
        "log_latency_squares": 4.0,
        "timed_answers": 2.0,
        "late_answers": 0.125,
        "late_answers_squares": 0.25,
        "compared_rows": 8.0,
        "agreeing_rows": 7.0,
        "shed": 0.25,
        "flushes_begun": 1.0,
    }
    return "\n".join(
        [
            "# HELP nv_inference_count Number of inferences performed",
            'nv_inference_count{model="m",version="1"} 7',
            "# TYPE millrace_split_requests_total counter",
            *(f"millrace_split_{k}_total{{{labels}}} {v * requests:g}" for k, v in names.items()),
        ]
    )


def test_every_counter_is_read() -> None:
    counts = count_step(SPLIT, parse_counters(lines(160)))
    candidate = Arm(160, 16, 1.6, 10, 80.0, 640.0, 320, 20, 40.0)
    assert counts == Counts(Arm(), candidate, compared=1280, agreeing=1120, shed=40)


def test_only_what_came_since_the_earlier_reading_is_counted() -> None:
    counts = count_step(SPLIT, parse_counters(lines(160)), parse_counters(lines(96)))
    assert (counts.candidate.requests, counts.candidate.blocks) == (64, 4)


def test_a_counter_that_began_again_counts_from_zero() -> None:
    counts = count_step(SPLIT, parse_counters(lines(32)), parse_counters(lines(160)))
    assert counts.candidate.requests == 32


def test_a_splitter_that_was_loaded_again_has_series_of_its_own() -> None:
    before = parse_counters(lines(160))
    beside = parse_counters(lines(170) + "\n" + lines(32, instance="b"))
    assert count_step(SPLIT, beside, before).candidate.requests == 42
    assert (
        count_step(SPLIT, parse_counters(lines(32, instance="b")), before).candidate.requests == 32
    )


def test_other_models_and_other_steps_are_not_counted() -> None:
    page = lines(5, began="900.0") + "\n" + lines(7, model="other")
    assert count_step(SPLIT, parse_counters(page)) == Counts()
    assert (len(parse_counters(page).flushes("other")), parse_counters(page).flushes("x")) == (
        1,
        {},
    )


def test_a_reading_tells_whether_this_very_step_is_served() -> None:
    assert parse_counters(lines(0)).has_step(SPLIT)
    assert not parse_counters(lines(5, began="900.0")).has_step(SPLIT)
    assert not parse_counters(lines(5, model="other")).has_step(SPLIT)


def test_a_page_without_a_splitter_is_an_empty_reading() -> None:
    assert parse_counters('nv_inference_count{model="m",version="1"} 7\n') == Reading()


def test_large_numbers_are_read() -> None:
    page = re.sub(r"(split_requests_total.*) 1\n", r"\1 1.234567890123456e+09\n", lines(1))
    assert count_step(SPLIT, parse_counters(page)).candidate.requests == 1234567890


@contextmanager
def serving(pages: Iterator[str]) -> Iterator[Endpoint]:
    """Give a server whose metrics are one page after the other."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/metrics" else 404)
            self.end_headers()
            self.wfile.write(next(pages).encode())

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield Endpoint("127.0.0.1", metrics_port=server.server_port)
        server.shutdown()


def torn(requests: float) -> str:
    """Return a page that was written while the splitter brought its counters up to date."""
    return lines(requests).replace(f"}} {requests:g}\n", f"}} {requests - 1:g}\n", 1)


def test_the_page_is_read_from_the_metrics_port() -> None:
    with serving(iter([lines(16)])) as endpoint:
        assert count_step(SPLIT, read_counters(endpoint)).candidate.requests == 16


def test_a_page_whose_counters_do_not_belong_together_is_read_again() -> None:
    assert parse_counters(torn(16)).inconsistent
    with serving(iter([torn(16), torn(17), lines(18)])) as endpoint:
        assert count_step(SPLIT, read_counters(endpoint)).candidate.requests == 18


def test_a_splitter_that_died_while_it_wrote_is_not_counted(monkeypatch) -> None:
    monkeypatch.setattr(split_metrics, "WAIT_SECONDS", 0)
    page = torn(16) + "\n" + lines(32, instance="b")
    with serving(repeat(page)) as endpoint:
        assert count_step(SPLIT, read_counters(endpoint)).candidate.requests == 32


def test_a_server_that_is_not_there_is_a_passing_fault() -> None:
    with pytest.raises(TransientError, match="metrics cannot be read"):
        read_counters(Endpoint("127.0.0.1", metrics_port=1))
