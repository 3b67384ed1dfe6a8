import httpx
import pytest
from mlflow.exceptions import MlflowException

from flows import release_loop
from models.errors import TransientError


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


def test_a_watch_outlives_what_its_servers_do(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    faults = iter((*FAILURES, KeyboardInterrupt()))

    def fail(**_: object) -> None:
        raise next(faults)

    monkeypatch.setattr(release_loop, "release_model", fail)
    monkeypatch.setattr(release_loop.log, "propagate", True)
    with pytest.raises(KeyboardInterrupt):
        release_loop.watch_releases(0.0, lambda outcomes: None)
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == len(FAILURES)
    assert all(str(fault) in line for fault, line in zip(FAILURES, told, strict=True))


def test_a_fault_of_ours_ends_a_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**_: object) -> None:
        raise KeyError("no such thing")

    monkeypatch.setattr(release_loop, "release_model", fail)
    with pytest.raises(KeyError):
        release_loop.watch_releases(0.0, lambda outcomes: None)
