"""When a language model's backend sends what it has, and whom it waits for."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.serving.test_language_backend import module

stream, arrivals = module("lm_stream"), module("lm_arrivals")


def begun(interval: int | None) -> Any:
    """Return a stream whose first token was sent at second 100."""
    sampling = SimpleNamespace(n=1, stop=())
    made = stream.Stream(SimpleNamespace(stream=True, sampling=sampling, echo=""), None, interval)
    made.answers[0].add([5])
    made.record_tokens(100.0)
    assert made.is_due(pause=0.25), "the first token goes at once"
    made.next_part()
    return made


def sizes(made: Any, seconds: float, pause: float, steps: int) -> list[int]:
    """Return the tokens of the parts after each of so many steps, 0 for none, of one token each."""
    sent = []
    for number in range(1, steps + 1):
        made.answers[0].add([number])
        made.record_tokens(100.0 + seconds * number)
        is_due = made.is_due(pause)
        assert made.must_decode(made.answers[0], pause) == is_due
        sent.append(made.next_part().output_tokens[0] if is_due else 0)
    return sent


def test_tokens_are_sent_so_many_at_a_time() -> None:
    assert sizes(begun(interval=3), seconds=1.0, pause=0.1, steps=6) == [0, 0, 3] * 2


def test_tokens_are_sent_as_many_as_come_in_a_pause() -> None:
    assert sizes(begun(None), seconds=0.01, pause=0.029, steps=6) == [0, 0, 3] * 2
    assert sizes(begun(None), seconds=0.2, pause=0.19, steps=3) == [1, 1, 1]


def test_the_more_streams_the_longer_is_the_pause_but_never_long() -> None:
    assert stream.pause_seconds(1) < 0.01
    assert stream.pause_seconds(32) == pytest.approx(32 * stream.pause_seconds(1))
    assert stream.pause_seconds(10_000) == stream.MAX_PAUSE_SECONDS < 0.3


@pytest.mark.parametrize("interval", [None, 8])
def test_nothing_is_sent_while_nothing_comes(interval: int | None) -> None:
    made = begun(interval)
    made.record_tokens(200.0)
    assert not made.is_due(pause=0.01)


def test_what_is_being_read_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrivals, "MAX_SECONDS", 60.0)
    coming, began, read = arrivals.Arrivals(), threading.Event(), threading.Event()

    def reader() -> None:
        with coming.reading():
            began.set()
            read.wait()

    threads = [threading.Thread(target=each) for each in (reader, coming.gather)]
    threads[0].start()
    began.wait()
    threads[1].start()
    threads[1].join(0.05)
    assert threads[1].is_alive(), "it is still being read"
    read.set()
    for thread in threads:
        thread.join(30)
    assert coming._reading == 0
    assert coming._arrived == coming._known == 1


@pytest.mark.parametrize("reading", [False, True])
def test_answers_under_way_do_not_wait_for_ever(reading: bool) -> None:
    coming = arrivals.Arrivals()
    coming._reading = int(reading)
    gathered = threading.Thread(target=coming.gather, daemon=True)
    gathered.start()
    gathered.join(5)
    assert not gathered.is_alive()
