import fcntl
import json
import os
import subprocess
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from millrace.flows import settings
from millrace.flows.clean_up import clean_up
from millrace.flows.cli.clean import _closing_line, with_scheduled
from millrace.flows.cli.main import make_app
from millrace.flows.deployments import schedule_state
from millrace.flows.run_state import LOCK
from millrace.models.common.errors import WorkError
from millrace.models.common.installation import Installation
from millrace.models.common.log_files import hold_log, is_log_in_use
from millrace.models.config.retention_spec import RetentionSpec
from millrace.models.registry.open_runs import Note, OpenRun
from millrace.tasks.retention.clean import clean, longest_retention, read_texts
from millrace.tasks.retention.clean_home import clean_home, find_left_work
from millrace.tasks.retention.cleaned import Cleaned

NOW = datetime.now(UTC)


@pytest.fixture
def home(tmp_path: Path) -> Installation:
    folder = tmp_path / "home"
    tables = str(folder / "tables")
    return Installation(folder, f"sqlite:///{folder}/mlflow.db", tables).prepared()


def age(path: Path, days: float) -> Path:
    """Make a file or folder look old."""
    then = (NOW - timedelta(days=days)).timestamp()
    for entry in (*path.rglob("*"), path):
        os.utime(entry, (then, then))
    return path


def left(home: Installation, name: str, days: float) -> Path:
    folder = home.home / name
    folder.mkdir(parents=True)
    (folder / "rows.arrow").write_text("rows")
    return age(folder, days)


def test_what_killed_commands_left_goes_after_a_day(home: Installation) -> None:
    old = left(home, "staging/ingest-x-1", 3)
    weights = left(home, "training/run1", 3)
    new = left(home, "staging/ingest-x-2", 0.5)
    (cleaned, _) = clean_home(home, RetentionSpec(), NOW, dry_run=True)
    assert cleaned.removed == ("staging/ingest-x-1", "training/run1")
    assert old.exists()
    assert clean_home(home, RetentionSpec(), NOW, dry_run=False)[0] == cleaned
    assert (cleaned.files, cleaned.size) == (2, 8)
    assert not old.exists()
    assert not weights.exists()
    assert new.exists()


def test_the_work_of_an_open_run_stays_however_old(home: Installation) -> None:
    opened = OpenRun(home.run, Note("", "run1"))
    opened.write()
    note = home.run / "open_runs" / "run1.json"
    os.utime(note, ((NOW - timedelta(days=9)).timestamp(),) * 2)
    before_it, since_it = left(home, "staging/a", 10), left(home, "training/run1", 8)
    assert find_left_work(home, NOW - timedelta(days=1)) == [before_it]
    opened.forget()
    assert find_left_work(home, NOW - timedelta(days=1)) == [before_it, since_it]


def test_old_logs_go_unless_a_process_writes_them(home: Installation) -> None:
    used, old, new = (home.logs / name for name in ("mlflow.log", "old.log", "new.log"))
    for file in (used, old, new):
        file.write_text("line")
    age(used, 40)
    age(old, 40)
    with used.open("ab") as opened:
        hold_log(opened.fileno())
        child = subprocess.Popen(["sleep", "60"], stdout=opened)
    try:
        (_, cleaned) = clean_home(home, RetentionSpec(), NOW, dry_run=False)
    finally:
        child.kill()
        child.wait()
    assert cleaned == Cleaned("logs", removed=("logs/old.log",), files=1, size=4)
    assert used.exists()
    assert not is_log_in_use(used)
    assert new.exists()


def test_nothing_goes_that_is_kept_for_ever(home: Installation) -> None:
    left(home, "staging/a", 400)
    assert clean_home(home, RetentionSpec(logs=None, staging=None), NOW, dry_run=False) == []


def test_what_pipelines_share_stays_for_the_longest_time() -> None:
    specs = [RetentionSpec(logs=5, staging=3), RetentionSpec(logs=9, staging=None)]
    found = longest_retention(specs)
    assert (found.logs, found.staging) == (9, None)
    assert longest_retention([]) == RetentionSpec()


@pytest.fixture
def shared(mlflow_places: Installation, tmp_path: Path) -> Installation:
    """Return the shared MLflow with a home and tables of the test's own."""
    found = replace(
        mlflow_places,
        home=tmp_path / "home",
        tables_uri=str(tmp_path / "tables"),
        pipelines=(str(tmp_path / "*.yaml"),),
    )
    return found.prepared()


def write_pipeline(folder: Path, name: str, **retention: int) -> None:
    values = {
        "name": name,
        "dataset": {"source": "data.csv", "target": "y"},
        "retention": retention,
    }
    (folder / f"{name}.yaml").write_text(json.dumps(values))


def set_environment(patch: pytest.MonkeyPatch, home: Installation, folder: Path) -> None:
    patch.setenv("MILLRACE_HOME", str(home.home))
    patch.setenv("MILLRACE_PIPELINES", str(folder / "*.yaml"))
    patch.setenv("MLFLOW_TRACKING_URI", home.tracking_uri)
    patch.setenv("MILLRACE_TABLES", home.tables_uri)


def test_a_table_that_cannot_be_read_does_not_keep_the_rest_from_being_cleaned(
    shared: Installation, tmp_path: Path
) -> None:
    write_pipeline(tmp_path, "broken", snapshots=1, predictions=30)
    write_pipeline(tmp_path, "whole", snapshots=1)
    for table in ("datasets", "predictions"):
        log = Path(shared.table(table, "broken"), "_delta_log")
        log.mkdir(parents=True)
        (log / f"{0:020}.json").write_text("damaged")
    old = age(tmp_path / "home" / "logs", 40) / "old.log"
    old.write_text("line")
    age(old, 40)
    found = list(clean([], shared))
    assert [each.subject for each in found if each.skipped] == [
        "snapshots of broken",
        "predictions of broken",
    ]
    assert {"snapshots of whole", "logs"} <= {each.subject for each in found}
    assert not old.exists()


def test_a_pipeline_file_that_cannot_be_read_keeps_what_it_shares_with_others(
    shared: Installation, tmp_path: Path
) -> None:
    write_pipeline(tmp_path, "whole")
    (tmp_path / "broken.yaml").write_text("name: [")
    old = shared.logs / "old.log"
    old.write_text("line")
    age(old, 40)
    found = list(clean([], shared))
    assert read_texts([tmp_path / "broken.yaml"]) == {"named in broken.yaml": "name: ["}
    assert found[0].subject == "pipeline files"
    assert "broken.yaml" in found[0].skipped[0]
    assert "versions of whole" in {each.subject for each in found}
    assert old.exists()


def test_without_mlflow_predictions_are_still_cleaned(shared: Installation, tmp_path: Path) -> None:
    write_pipeline(tmp_path, "things", predictions=30)
    found = list(clean([], replace(shared, tracking_uri="http://127.0.0.1:9")))
    assert [each.subject for each in found if each.skipped] == ["versions of things"]
    assert "MLflow cannot be reached" in found[0].skipped[0]
    assert "predictions of things" in {each.subject for each in found}


def test_a_command_that_could_not_remove_something_fails_after_the_rest(
    shared: Installation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken.yaml").write_text("name: [")
    write_pipeline(tmp_path, "whole")
    set_environment(monkeypatch, shared, tmp_path)
    monkeypatch.setattr("millrace.flows.console.redirect_native_stderr", lambda file: None)
    result = CliRunner().invoke(make_app(["clean"]), ["clean", "--json"])
    assert result.exit_code == 1, result.output
    subjects = [each["kind"] for each in json.loads(result.stdout)["cleaned"]]
    assert subjects[:2] == ["pipeline files", "versions"]


@pytest.mark.parametrize(
    ("found", "line"),
    [
        ([], "nothing was removed"),
        ([Cleaned("logs", kept={"a": "in use"}, skipped=("b",))], "nothing was removed"),
        (
            [
                Cleaned("snapshots", "a", ("snapshot 1", "snapshot 2"), files=3, size=1_500_000),
                Cleaned("snapshots", "b", ("snapshot 7",), files=1, size=500_000),
                Cleaned("logs"),
            ],
            "removed: snapshots 3; 2.0 MB of disk became free",
        ),
        (
            [Cleaned("versions", "a", ("version 1",)), Cleaned("snapshots", "a", (), {}, 2, 10)],
            "removed: versions 1; at least 10 bytes of disk became free",
        ),
        ([Cleaned("artifacts", "a", ("run 1",))], "removed: artifacts 1"),
        ([Cleaned("predictions", "a", files=2, size=10)], "removed: 10 bytes of disk became free"),
    ],
)
def test_the_last_line_says_what_was_removed(found: list[Cleaned], line: str) -> None:
    assert _closing_line(found, dry_run=False) == line
    assert _closing_line(found, dry_run=True).startswith("nothing was removed; leave out")


def test_the_command_ends_with_that_line(
    shared: Installation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_pipeline(tmp_path, "whole")
    set_environment(monkeypatch, shared, tmp_path)
    monkeypatch.setattr("millrace.flows.console.redirect_native_stderr", lambda file: None)
    (shared.logs / "old.log").write_text("line")
    age(shared.logs / "old.log", 40)
    result = CliRunner().invoke(make_app(["clean"]), ["clean"])
    assert result.stderr.endswith("removed: logs 1; 4 bytes of disk became free\n"), result.output


def test_without_a_file_it_cleans_what_a_running_up_schedules(
    shared: Installation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_pipeline(tmp_path, "whole", predictions=30)
    set_environment(monkeypatch, shared, tmp_path)
    monkeypatch.delenv("MILLRACE_PIPELINES")
    monkeypatch.chdir(tmp_path)  # which has no default pipeline file
    chosen = settings.load()
    schedule_state.write_patterns(chosen.run, (str(tmp_path / "*.yaml"),))
    assert with_scheduled(chosen).pipeline_files == ()
    with (chosen.run / LOCK).open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert [file.name for file in with_scheduled(chosen).pipeline_files] == ["whole.yaml"]


def test_the_weekly_flow_fails_after_the_rest_and_says_what_was_not_removed(
    shared: Installation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken.yaml").write_text("name: [")
    write_pipeline(tmp_path, "whole")
    set_environment(monkeypatch, shared, tmp_path)
    seen: list[str] = []
    monkeypatch.setattr("millrace.flows.clean_up.log.log", lambda *of: seen.append(str(of[-1])))
    with pytest.raises(WorkError, match="1 things could not be cleaned") as raised:
        clean_up.fn()
    assert "broken.yaml" in str(raised.value.seen)
    assert any(line.startswith("dead letters of whole") for line in seen)
