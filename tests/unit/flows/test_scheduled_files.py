from pathlib import Path

from millrace.flows.deployments import schedule_state
from millrace.flows.deployments.schedule_state import PutBack, Schedule, Schedules, dump_pipelines
from millrace.flows.deployments.scheduled_files import (
    ScheduledPipeline,
    ScheduleFault,
    read_pipeline_files,
    select_pipelines,
)
from millrace.models.config.batch_spec import ScheduleSpec


def pipeline(file: Path, name: str = "a", more: str = "") -> Path:
    file.write_text(f"name: {name}\ndataset: {{source: r.csv, target: y}}\n{more}")
    return file


def scheduled(
    *patterns: Path, kept: dict[str, ScheduledPipeline] | None = None
) -> tuple[list[str], str]:
    pipelines, faults = select_pipelines(read_pipeline_files(map(str, patterns)), kept or {})
    return [each.name for each in pipelines], "\n".join(each.reason for each in faults)


def test_files_and_globs_are_read_once_and_in_order(tmp_path: Path) -> None:
    two, one = pipeline(tmp_path / "b.yaml", "b"), pipeline(tmp_path / "a.yaml")
    assert scheduled(two, tmp_path / "*.yaml") == (["b", "a"], "")
    assert one.exists()


def test_a_file_that_became_invalid_keeps_its_last_schedule_and_is_told(tmp_path: Path) -> None:
    file = pipeline(tmp_path / "a.yaml", more="schedule: {score: every night}\n")
    before = {str(file): ScheduledPipeline("a", file, ScheduleSpec())}
    names, told = scheduled(file, kept=before)
    assert names == ["a"]
    assert "its last valid schedule applies" in told
    names, told = scheduled(file)
    assert names == []
    assert "it has no schedule" in told


def test_a_file_that_a_run_would_refuse_is_not_scheduled_until_it_is_put_right(
    tmp_path: Path,
) -> None:
    file = pipeline(tmp_path / "a.yaml", more="training: {epoch: 5}\n")
    names, told = scheduled(file)
    assert names == []
    assert "training.epoch: there is no such key" in told
    assert "\n" not in told
    pipeline(file, more="training: {epochs: 5}\n")
    assert scheduled(file) == (["a"], "")


def test_a_file_that_is_gone_is_not_scheduled_and_is_told(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    before = {str(file): ScheduledPipeline("a", file, ScheduleSpec())}
    assert scheduled(file, kept=before) == ([], "there is no such file; nothing is scheduled")


def test_of_two_files_with_one_name_the_first_is_scheduled(tmp_path: Path) -> None:
    names, told = scheduled(pipeline(tmp_path / "a.yaml"), pipeline(tmp_path / "b.yaml"))
    assert names == ["a"]
    assert "a.yaml has the name 'a' as well" in told


def test_what_is_true_is_kept_in_a_private_file(tmp_path: Path) -> None:
    kept = dump_pipelines(
        {"/x.yaml": ScheduledPipeline("x", Path("/x.yaml"), ScheduleSpec(train=None))}
    )
    state = Schedules(
        pid=7,
        patterns=("/x.yaml",),
        settled=True,
        schedules=(Schedule("score-x", "/x.yaml", "0 2 * * *", paused=True),),
        faults=(ScheduleFault("/y.yaml", "gone"),),
        put_back=(PutBack("score-x", "it was missing", "2026-11-22T02:00:00+00:00"),),
        kept=kept,
    )
    schedule_state.write(tmp_path, state)
    found = schedule_state.read(tmp_path)
    assert found == state
    assert found is not None
    assert found.last_valid()["/x.yaml"].schedule.train is None
    assert (tmp_path / schedule_state.STATE_FILE).stat().st_mode & 0o777 == 0o600
    assert schedule_state.read_patterns(tmp_path, ("/else",)) == ("/else",)
    schedule_state.write_patterns(tmp_path, ("/x.yaml",))
    assert schedule_state.read_patterns(tmp_path, ("/else",)) == ("/x.yaml",)
