"""Tasks of an ingestion on a Ray, and what is checked before."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from ray.exceptions import NodeDiedError

from millrace.models.common.errors import InputError, TransientError
from millrace.models.common.installation import Installation
from millrace.models.config.dataset_spec import DatasetSpec
from millrace.models.data import cluster_tasks
from millrace.models.data.cluster_tasks import ClusterTasks, require_seen
from millrace.models.data.part_tasks import ReadTask
from millrace.models.data.read_source import open_rows
from millrace.models.data.sources.open_source import open_source


@pytest.fixture
def tasks(tmp_path: Path) -> list[ReadTask]:
    """Return a task for each of three files, with 1, 2 and 3 rows."""
    for number in range(3):
        (tmp_path / f"{number}.csv").write_text("x,y\n" + "1,a\n" * (number + 1))
    source = open_source(DatasetSpec(source="*.csv", target="y"), tmp_path)
    schema, _ = open_rows(source, source.spec, None)
    return [ReadTask(source.only([file]), schema, tmp_path) for file in source.found()]


@pytest.fixture
def other_node(local_ray: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster that seems to have a node beside this one."""
    monkeypatch.setattr(ClusterTasks, "_has_other_nodes", lambda _: True)


@pytest.fixture
def runner(tmp_path: Path) -> Iterator[ClusterTasks]:
    with cluster_tasks.cluster_tasks(Installation(tmp_path, "", str(tmp_path / "t"))) as made:
        yield made


def test_tasks_run_here_if_there_is_no_other_node(
    local_ray: None,
    tasks: list[ReadTask],
    runner: ClusterTasks,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(cluster_tasks, "_run")
    assert [each.part.digest.rows for each in runner(tasks, lambda _: None)] == [1, 2, 3]


def test_results_come_in_order_and_rows_are_counted(
    other_node: None, tasks: list[ReadTask], runner: ClusterTasks
) -> None:
    counted: list[int] = []
    read = runner(tasks, counted.append)
    assert [each.part.digest.rows for each in read] == [1, 2, 3]
    assert sorted(counted) == [1, 2, 3]
    assert all(file.path.is_file() for each in read for file in each.files)


def test_the_error_of_a_task_is_raised_as_it_is(
    other_node: None, tmp_path: Path, tasks: list[ReadTask], runner: ClusterTasks
) -> None:
    (tmp_path / "1.csv").write_bytes(b"x,y\n\xff\xfe,a\n1\0,b\n" * 3)
    with pytest.raises(InputError, match=r"1\.csv cannot be read as CSV") as caught:
        runner(tasks, lambda _: None)
    assert type(caught.value) is InputError


def test_a_task_that_has_not_ended_when_another_fails_stops(
    tmp_path: Path, tasks: list[ReadTask]
) -> None:
    assert cluster_tasks.run_ingest_task(tasks[0]) is not None
    (tmp_path / cluster_tasks.STOP).touch()
    before = set(tmp_path.iterdir())
    assert cluster_tasks.run_ingest_task(tasks[1]) is None
    assert set(tmp_path.iterdir()) == before


def test_a_node_that_does_not_see_a_folder_is_named(
    local_ray: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_seen([tmp_path])
    monkeypatch.setattr(cluster_tasks, "_look_at", lambda path: "a folder")
    with pytest.raises(InputError, match="does not see") as caught:
        require_seen([tmp_path, tmp_path / "only-here"])
    assert "nothing" in (caught.value.seen or "")
    assert "only-here" in caught.value.what
    assert caught.value.exit_code == 2


def test_tables_outside_of_the_home_must_be_seen_as_well(tmp_path: Path) -> None:
    installation = Installation(tmp_path / "home", "", str(tmp_path / "tables"))
    with cluster_tasks._proof_in(installation) as proof:
        assert [each.parent for each in proof] == [tmp_path / "tables"]
        assert proof[0].is_dir()
    assert list((tmp_path / "tables").iterdir()) == []


def test_nodes_that_die_too_often_are_an_error_that_may_pass() -> None:
    error = cluster_tasks._error_of(NodeDiedError("gone\nfor ever"), "rows/*.csv")
    assert isinstance(error, TransientError)
    assert (error.what, error.seen) == ("rows/*.csv could not be read on the Ray cluster", "gone")
