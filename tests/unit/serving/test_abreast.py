import contextvars
import threading

import pytest

from millrace.serving.triton import every_replica as module
from millrace.serving.triton.every_replica import abreast

SOON = 10.0


def test_each_name_gets_what_its_work_gave_in_order() -> None:
    assert list(abreast(lambda name, stop: name.upper(), ["b", "a"]).items()) == [
        *(("b", "B"), ("a", "A"))
    ]
    assert abreast(lambda name, stop: name, []) == {}


def test_one_alone_is_done_in_this_thread() -> None:
    assert abreast(lambda name, stop: threading.get_ident(), ["a"]) == {"a": threading.get_ident()}


def test_what_hangs_keeps_no_other_waiting() -> None:
    done = threading.Event()

    def work(name: str, stop: threading.Event) -> bool:
        if name == "a":
            return done.wait(SOON)
        if name == "z":
            done.set()
        return True

    names = ["a", *(str(number) for number in range(20)), "z"]
    assert abreast(work, names) == dict.fromkeys(names, True)


def test_a_failure_is_raised_when_the_others_are_done() -> None:
    done = []

    def work(name: str, stop: threading.Event) -> None:
        if name == "a":
            raise ValueError(name)
        done.append(name)

    with pytest.raises(ValueError, match="a"):
        abreast(work, ["a", "b", "c"])
    assert sorted(done) == ["b", "c"]


def test_the_context_of_the_caller_is_seen() -> None:
    seen: contextvars.ContextVar[str] = contextvars.ContextVar("seen")
    seen.set("here")
    assert abreast(lambda name, stop: seen.get(), ["a", "b"]) == {"a": "here", "b": "here"}


def test_an_interruption_begins_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, interrupted = [], threading.Event()

    def work(name: str, stop: threading.Event) -> None:
        begun.append(name)
        if len(begun) == module.MOST:
            interrupted.set()
        assert stop.wait(SOON)

    class Interrupted(threading.Thread):
        def join(self, timeout: float | None = None) -> None:
            assert interrupted.wait(SOON)
            if timeout is None:
                raise KeyboardInterrupt
            super().join(timeout)

    monkeypatch.setattr(module.threading, "Thread", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        abreast(work, [str(number) for number in range(3 * module.MOST)])
    assert len(begun) == module.MOST
