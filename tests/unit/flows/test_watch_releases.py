from itertools import count

import httpx
import pytest
from mlflow.exceptions import MlflowException

from millrace.flows.triggers import watch
from millrace.models.common.errors import TransientError


def _raised(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


FAILURES = (
    TransientError("Triton is away"),
    MlflowException("API request failed with Connection refused"),
    ConnectionResetError("reset by peer"),
    httpx.ConnectError("All connection attempts failed"),
    _raised(RuntimeError("Failed to reach API"), httpx.ConnectError("refused")),
)


_numbers = count()


def _something_else() -> dict[str, str]:
    return {"a": f"switch a version {next(_numbers)}"}


def test_where_nothing_is_due_no_release_is_made() -> None:
    looks = iter(({}, {"a": "switch a"}, {"a": "switch a"}, {}))
    released: list[object] = []

    def due() -> dict[str, str]:
        try:
            return next(looks)
        except StopIteration:
            raise KeyboardInterrupt from None

    def release(**asked: object) -> tuple[()]:
        released.append(asked["models"])
        raise TransientError("Triton is away")

    with pytest.raises(KeyboardInterrupt):
        watch.watch_releases(0.0, lambda outcomes: None, due, release)
    assert released == [["a"]]


def test_a_watch_outlives_what_its_servers_do(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    faults = iter((*FAILURES, KeyboardInterrupt()))

    def fail(**_: object) -> None:
        raise next(faults)

    monkeypatch.setattr(watch.log, "propagate", True)
    with pytest.raises(KeyboardInterrupt):
        watch.watch_releases(0.0, lambda outcomes: None, _something_else, fail)
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == len(FAILURES)
    assert all(str(fault) in line for fault, line in zip(FAILURES, told, strict=True))


def test_a_fault_of_ours_ends_a_watch() -> None:
    def fail(**_: object) -> None:
        raise KeyError("no such thing")

    with pytest.raises(KeyError):
        watch.watch_releases(0.0, lambda outcomes: None, _something_else, fail)
