"""Requests that are logged, beside the training rows of the version that answered."""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from millrace.flows.cli.feedback import _events, _show
from millrace.models.common.errors import InputError
from millrace.models.common.installation import Installation
from millrace.models.config.dataset_spec import DatasetSpec
from millrace.models.config.pipeline import Pipeline
from millrace.models.data.ingest import ingest
from millrace.models.registry.mlflow_registry import registry_of
from millrace.models.registry.version_files import CHAMPION, DATASET_TAG, dataset_tag
from millrace.serving.request_table import collect_requests
from millrace.tasks.alerts import ONLINE_DRIFT
from millrace.tasks.feedback import read_feedback
from millrace.tasks.online_drift import read_online_drift
from millrace.tasks.reports.feedback_plots import feedback_pictures
from tests.integration.planted import good, plant

NAME, ROWS = "asked", 2000
NOW = datetime(2026, 11, 20, 12, tzinfo=UTC).timestamp()
DAY = 86_400.0


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    folder = tmp_path_factory.mktemp("home")
    made = Installation(folder, f"sqlite:///{folder}/mlflow.db", str(folder / "tables")).prepared()
    lines = [json.dumps({**row, "t": "xyz"[n % 3]}) for n, row in enumerate(rows(ROWS))]
    (folder / "rows.jsonl").write_text("\n".join(lines))
    spec = DatasetSpec(source="rows.jsonl", target="t")
    snapshot = ingest(Pipeline(name=NAME, dataset=spec).with_folder(folder), made)
    plant(made, NAME, good(tags={DATASET_TAG: dataset_tag(NAME, snapshot.version)}))
    registry = registry_of(made)
    registry.set_alias(registry.version(NAME, 1), CHAMPION)
    return made


def rows(count: int, shift: float = 0.0, seed: int = 3) -> list[dict[str, Any]]:
    chance = np.random.default_rng(seed)
    return [
        {"size": round(float(size), 3), "plan": plan, "paid": bool(paid)}
        for size, plan, paid in zip(
            chance.normal(shift, 1, count),
            chance.choice(["free", "pro"], count),
            chance.random(count) < 0.5,
            strict=True,
        )
    ]


def ask(
    home: Installation, asked: Sequence[Mapping[str, Any]], at: float = NOW, version: int = 1
) -> None:
    folder = home.home / "request_log" / NAME
    folder.mkdir(parents=True, exist_ok=True)
    lines = [
        {"time": at, "version": version, "request": "r", "number": n, "key": {}, "row": row}
        | {"prediction": "x", "score": 0.5}
        for n, row in enumerate(asked)
    ]
    (folder / f"{at}-{version}.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    assert collect_requests(home, NAME).rows == len(lines)


def test_without_labels_and_requests_there_is_nothing_to_say(home: Installation) -> None:
    with pytest.raises(InputError, match="there is nothing to say of asked"):
        read_feedback(home, NAME, None)


def test_requests_like_the_training_rows_have_no_drift_and_others_have(
    home: Installation, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    ask(home, rows(500, seed=4), NOW - 8 * DAY)
    ask(home, rows(500, seed=5))
    (found,) = read_online_drift(home, NAME, 0.25)
    assert (found.version, found.rows, found.since) == (1, 500, "2026-11-14")
    assert {each.column for each in found.columns} == {"size", "plan", "paid"}
    assert not found.over
    unmasked = [{name: row[name] for name in ("size", "plan")} for row in rows(500, 2.0, seed=6)]
    ask(home, [{**row, "plan": None} for row in unmasked], NOW + 9 * DAY)
    whole = read_feedback(home, NAME, None)
    (found,) = whole.drift
    assert {each.column for each in found.columns} == {"size", "plan"}
    assert [each.column for each in found.over] == ["plan", "size"]
    (event,) = _events(whole)
    assert (event.event, set(event.details["columns"])) == (ONLINE_DRIFT, {"plan", "size"})
    _show(whole, has_labels=False)
    shown = capsys.readouterr().out
    assert "requests to version 1 since 2026-11-23: 500 rows" in " ".join(shown.split())
    assert "drifted from its training rows: plan (PSI" in shown.replace("\n", " ")
    assert set(feedback_pictures(whole)) == {"drift-version-1.png"}


def test_a_version_that_is_gone_is_left_out(home: Installation) -> None:
    ask(home, rows(10), NOW + 20 * DAY, version=7)
    assert [each.version for each in read_online_drift(home, NAME, 0.25)] == []


def test_labels_with_another_key_are_refused_with_both(home: Installation, tmp_path: Path) -> None:
    file = tmp_path / "labels.csv"
    file.write_text("id,t\n900,x\n901,y\n")
    with pytest.raises(InputError, match="none of 2 labels has a prediction") as caught:
        read_feedback(home, NAME, str(file), key=("id",))
    assert "keys of labels: 900, 901" in str(caught.value.seen)
