from datetime import UTC, datetime

import pytest

from flows.show import show_history
from serving.standing import Release

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
