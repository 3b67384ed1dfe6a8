from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from millrace.export.onnx.graph_certificate import Certificate
from millrace.flows.cli.show import show_history, show_status, show_training
from millrace.flows.cli.show_language import learnt_nothing
from millrace.flows.services.control import ServiceStatus, Status
from millrace.models.registry.gates import Comparison, Promotion
from millrace.models.registry.tracking import TrackedRun
from millrace.models.registry.version_files import ModelVersion
from millrace.serving.release.release_state import Release

REFUSAL = "the p99 of one row is 12.4 ms, above its latency_slo_ms of 10, on digits.trial-8f2e0c"
ASKED_BY = "webhook: champion of digits → version 11"


@pytest.mark.parametrize("columns", [80, 120])
def test_a_history_breaks_no_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    at = datetime(2026, 11, 21, 9, 41, 7, tzinfo=UTC)
    withdrawn = Release("digits", "withdrawn", 11, previous=10, at=at)
    refused = Release(
        "digits", "refused", 11, previous=10, asked_by=ASKED_BY, reason=REFUSAL, seconds=43, at=at
    )
    show_history("digits", [withdrawn, refused])
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= columns
    assert printed.count("2026-11-21 09:41:07") == 2
    told = f"{REFUSAL} took 43.0 s; before: 10; asked by {ASKED_BY}".split()
    words = printed.replace("│", " ").split()
    assert [word for word in told if word not in words] == []


def _trained(promotion: Promotion, tracking_uri: str) -> SimpleNamespace:
    certificate = Certificate("m", "fast", "d", "rows", 0, "e", 10, 2, "accuracy", 0.01, (), True)
    return SimpleNamespace(
        snapshot=SimpleNamespace(rows=10, version=0, created=True, quarantined=0),
        candidates=(),
        certificate=certificate,
        version=ModelVersion("digits", 3, "d", "run"),
        promotion=promotion,
        run=TrackedRun(tracking_uri, "1", "run"),
        recoveries=(),
    )


CHALLENGER = Promotion(True, False, "promotion is manual")
CHAMPION = Promotion(True, True, "there was no champion")
REFUSED = Promotion(False, False, "it did not hold its gates")
WORSE = Promotion(
    False,
    False,
    "a release would refuse it: its accuracy",
    "a release would refuse it: its accuracy",
    Comparison(1, True, "accuracy", 0.97, "onnx-fp32", 27 * 1024),
)
USELESS = Promotion(False, False, "it did not hold its gates: 0.1 is no better than 0.2, that of")
SERVER, DATABASE = "http://127.0.0.1:5000", "sqlite:///mlflow.db"


@pytest.mark.parametrize(
    ("promotion", "tracking_uri", "is_up", "says", "not_said"),
    [
        (CHALLENGER, SERVER, True, f"{SERVER}/#/models/digits/versions/3", "millrace up"),
        (CHALLENGER, DATABASE, False, "`millrace up`, then make digits version 3", "sqlite"),
        (CHAMPION, SERVER, True, "`millrace status` tells", "millrace up"),
        (CHAMPION, DATABASE, False, "`millrace up` serves", "millrace status"),
        (REFUSED, SERVER, True, "loosen export.max_metric_loss", "alias champion"),
        (WORSE, SERVER, True, "not to be promoted", "alias champion"),
        (USELESS, SERVER, True, "it has learnt nothing", "export.max_metric_loss"),
    ],
)
def test_the_next_step_after_a_training_is_one_that_is_left(
    capsys: pytest.CaptureFixture[str],
    promotion: Promotion,
    tracking_uri: str,
    is_up: bool,
    says: str,
    not_said: str,
) -> None:
    show_training(_trained(promotion, tracking_uri), is_up=is_up)
    hint = " ".join(capsys.readouterr().err.split())
    assert says in hint
    assert not_said not in hint


def test_a_summary_shows_what_a_version_would_take_the_place_of(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show_training(_trained(WORSE, SERVER), is_up=True)
    printed = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "live now: version 1 onnx-fp32, 27 KiB, accuracy 0.9700" in printed


def _status(restarts: int, grpc: str = "") -> Status:
    service = ServiceStatus("triton", True, True, SERVER, 123, 61.0, restarts, "triton.log", grpc)
    return Status(True, "/home/a/.millrace", services=(service,))


@pytest.mark.parametrize(("restarts", "says"), [(1, "1 restart "), (12, "12 restarts ")])
def test_a_status_tells_how_often_a_service_was_restarted(
    capsys: pytest.CaptureFixture[str], restarts: int, says: str
) -> None:
    show_status(_status(restarts))
    assert says in capsys.readouterr().out
    show_status(_status(0))
    assert "restart" not in capsys.readouterr().out


def test_a_status_tells_where_clients_send_grpc(capsys: pytest.CaptureFixture[str]) -> None:
    show_status(_status(0, "127.0.0.1:8001"))
    assert "gRPC 127.0.0.1:8001" in capsys.readouterr().out
    show_status(_status(0))
    assert "gRPC" not in capsys.readouterr().out


@pytest.mark.parametrize(("perplexity", "told"), [(219.0, True), (218.9, False)])
def test_a_model_no_better_than_counting_has_learnt_nothing(perplexity: float, told: bool) -> None:
    outcome: Any = SimpleNamespace(
        certificate=SimpleNamespace(stages=[SimpleNamespace(perplexity=perplexity)]),
        baselines=SimpleNamespace(unigram=219.0),
    )
    assert learnt_nothing(outcome) is told
