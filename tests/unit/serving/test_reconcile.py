import contextvars
import threading
from collections.abc import Callable
from typing import Any

import pytest

from millrace.serving.release import reconcile as module
from millrace.serving.release.reconcile import run_in_threads

SOON = 10.0


def results(work: Callable[[str, threading.Event], Any], models: list[str]) -> dict[str, Any]:
    return {model: future.result() for model, future in run_in_threads(work, models).items()}


def test_each_model_gets_what_its_work_gave_in_order() -> None:
    assert list(results(lambda model, stop: model.upper(), ["b", "a"]).items()) == [
        *(("b", "B"), ("a", "A"))
    ]
    assert results(lambda model, stop: model, []) == {}


def test_a_single_model_is_released_in_this_thread() -> None:
    here = threading.get_ident()
    assert results(lambda model, stop: threading.get_ident(), ["a"]) == {"a": here}


def test_a_model_that_hangs_keeps_no_other_waiting() -> None:
    done = threading.Event()

    def work(model: str, stop: threading.Event) -> bool:
        if model == "a":
            return done.wait(SOON)
        if model == "z":
            done.set()
        return True

    models = ["a", *(str(number) for number in range(20)), "z"]
    assert results(work, models) == dict.fromkeys(models, True)


def test_a_failure_is_raised_when_the_others_are_done() -> None:
    done = []

    def work(model: str, stop: threading.Event) -> None:
        if model == "a":
            raise ValueError(model)
        done.append(model)

    with pytest.raises(ValueError, match="a"):
        results(work, ["a", "b", "c"])
    assert sorted(done) == ["b", "c"]


def test_a_failure_of_a_single_model_is_raised() -> None:
    def work(model: str, stop: threading.Event) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        results(work, ["a"])


def test_the_context_of_the_caller_is_seen() -> None:
    seen: contextvars.ContextVar[str] = contextvars.ContextVar("seen")
    seen.set("here")
    assert results(lambda model, stop: seen.get(), ["a", "b"]) == {"a": "here", "b": "here"}


def test_an_interruption_begins_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, interrupted = [], threading.Event()

    def work(model: str, stop: threading.Event) -> None:
        begun.append(model)
        if len(begun) == module.MAX_THREADS:
            interrupted.set()
        assert stop.wait(SOON)

    class Interrupted(threading.Thread):
        def join(self, timeout: float | None = None) -> None:
            assert self.daemon
            assert interrupted.wait(SOON)
            if timeout is None:
                raise KeyboardInterrupt
            super().join(timeout)

    monkeypatch.setattr(module, "Thread", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_in_threads(work, [str(number) for number in range(3 * module.MAX_THREADS)])
    assert len(begun) == module.MAX_THREADS
