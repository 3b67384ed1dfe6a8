from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from millrace.export.candidate import Candidate
from millrace.flows.cli.show import (
    show_certified,
    show_history,
    show_prediction,
    show_status,
    show_training,
)
from millrace.flows.services.control import ServiceStatus, Status
from millrace.flows.train_model import TrainOutcome
from millrace.models.config.model_kind import kind_named
from millrace.models.data.files_read import FilesRead
from millrace.models.registry.gates import Comparison, Promotion
from millrace.models.registry.tracking import TrackedRun
from millrace.models.registry.version_files import ModelVersion
from millrace.serving.release.release_state import Release
from millrace.tasks.kinds.graph.graph_predict import LiveAnswer
from millrace.tasks.kinds.language.language_predict import LiveText
from millrace.tasks.kinds.steps import KindReport, Table

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
    told = f"{REFUSAL} took 43.0 s; previous version: 10; asked by {ASKED_BY}".split()
    words = printed.replace("│", " ").split()
    assert [word for word in told if word not in words] == []


def _trained(
    promotion: Promotion, tracking_uri: str, kind: str = "graph", **values: Any
) -> TrainOutcome:
    snapshot: Any = SimpleNamespace(
        rows=10, version=0, created=True, quarantined=1790, reasons={"a: null": 1790}
    )
    report = KindReport({}, {}, {}, "", (), (), rows=(("test accuracy", "0.9900"),))
    outcome = TrainOutcome(
        snapshot=snapshot,
        candidates=(),
        certificate=None,
        version=ModelVersion("digits", 3, "d", "run"),
        promotion=promotion,
        run=TrackedRun(tracking_uri, "1", "run"),
        recoveries=(2,),
        failures=["resumed from the checkpoint of epoch 2"],
        report=report,
        gates=kind_named(kind).gates,
    )
    return replace(outcome, **values)


CHALLENGER = Promotion(True, False, "promotion is manual")
CHAMPION = Promotion(True, True, "there was no champion")
REFUSED = Promotion(False, False, "it did not pass its gates")
WORSE = Promotion(
    False,
    False,
    "a release would refuse it: its accuracy",
    "a release would refuse it: its accuracy",
    Comparison(1, True, "accuracy", 0.97, "onnx-fp32", 27 * 1024),
)
USELESS = Promotion(False, False, "it did not pass its gates: 0.1 is no better than 0.2, that of")
SERVER, DATABASE = "http://127.0.0.1:5000", "sqlite:///mlflow.db"


@pytest.mark.parametrize(
    ("promotion", "tracking_uri", "is_up", "says", "not_said"),
    [
        (CHALLENGER, SERVER, True, f"{SERVER}/#/models/digits/versions/3", "millrace up"),
        (CHALLENGER, DATABASE, False, "`millrace up`, then `millrace promote digits 3`", "sqlite"),
        (CHAMPION, SERVER, True, "`millrace status` shows", "millrace up"),
        (CHAMPION, DATABASE, False, "`millrace up` serves", "millrace status"),
        (REFUSED, SERVER, True, "loosen export.max_metric_loss", "alias champion"),
        (WORSE, SERVER, True, "should not be promoted", "alias champion"),
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


@pytest.mark.parametrize(
    ("kind", "gates"),
    [
        ("graph", "export.max_metric_loss, export.max_size_mib or serving.latency_slo_ms,"),
        ("language", "export.max_perplexity_increase or export.max_size_mib,"),
    ],
)
def test_the_gates_that_may_be_loosened_are_those_of_the_kind(
    capsys: pytest.CaptureFixture[str], kind: str, gates: str
) -> None:
    show_training(_trained(REFUSED, SERVER, kind), is_up=True)
    assert f"cannot be promoted; loosen {gates}" in " ".join(capsys.readouterr().err.split())


def test_a_summary_shows_rows_failures_and_what_the_kind_reports(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show_training(_trained(CHALLENGER, SERVER), is_up=True)
    lines = [
        " ".join(line.replace("│", " ").split()) for line in capsys.readouterr().out.splitlines()
    ]
    for line in (
        "snapshot 10 rows, version 0 (new)",
        "quarantined 1,790 rows: a: null (1,790)",
        "workers failed resumed from the checkpoint of epoch 2",
        "test accuracy 0.9900",
        "registered digits version 3, not champion: promotion is manual",
    ):
        assert line in lines


def test_what_is_printed_as_json_has_no_paths(tmp_path: Path) -> None:
    made = Candidate("onnx-fp32", tmp_path / "model.onnx", "d")
    compared = Candidate("tensorrt-fp16", is_served=False, reason="no GPU")
    snapshot: Any = SimpleNamespace(
        **dict.fromkeys(("name", "uri", "digest", "created"), "x"),
        **dict.fromkeys(("version", "rows", "quarantined"), 0),
        reasons={},
        repeated_keys=3,
        files_read=FilesRead(4, 1, changed=1),
    )
    report = KindReport({}, {}, {}, "", (), (), (), json={"tokens": {"version": 7}})
    outcome = _trained(
        CHALLENGER, SERVER, candidates=(made, compared), snapshot=snapshot, report=report
    )
    found = outcome.as_json()
    assert [(each["path"], each["is_engine"]) for each in found["candidates"]] == [
        *((None, False), (None, True)),
    ]
    assert found["tokens"] == {"version": 7}
    assert found["snapshot"]["reasons"] == {}
    assert found["snapshot"]["files_read"].changed == 1
    assert found["snapshot"]["repeated_keys"] == 3
    assert found["recoveries"] == (2,)


class _Live:
    """A certificate with its last stage."""

    certificate = None
    version = ModelVersion("digits", 3, "d", "run")
    endpoint = "127.0.0.1:8001"
    faults = ("triton: its labels differ",)

    def table(self) -> Table:
        return Table(("stage", "loss"), (("pytorch", "+0.00%"),), (("asked", "32 rows"),))


def test_a_certificate_is_shown_with_what_was_asked_and_its_faults(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show_certified(_Live())
    out, err = capsys.readouterr()
    assert "digits version 3 at 127.0.0.1:8001" in " ".join(out.split())
    assert "+0.00%" in out
    assert "asked: 32 rows" in err
    assert "fault: triton: its labels differ" in err


def test_answers_are_a_table_and_of_a_text_that_was_printed_the_figures(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show_prediction(LiveAnswer("digits", 3, "127.0.0.1:8001", ("seven",), (0.98765,), 1.25))
    out, _ = capsys.readouterr()
    assert "digits version 3 at 127.0.0.1:8001, 1.2 ms" in " ".join(out.split())
    assert "0.9877" in out
    text = LiveText("lm", 4, "127.0.0.1:8001", "a", "bc", "length", 3, 20, 12.5, 100.0)
    show_prediction(text)
    out, err = capsys.readouterr()
    assert out == "\n"
    said = "3 tokens in, 20 out (length); first after 12.5 ms, 200 tokens/s"
    assert f"lm version 4 at 127.0.0.1:8001: {said}" in " ".join(err.split())


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
