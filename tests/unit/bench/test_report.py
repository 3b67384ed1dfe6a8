import json
from pathlib import Path

import pytest
from rich.console import Console

from bench.measure import Row, failed_row
from bench.report import Machine, Result, is_busy, results_table, this_machine, write_result

MACHINE = Machine("Linux", "A processor", ("avx2",), 2, 8.0, "3.11", {"torch": "2.13.0"})
ROW = Row("P1", "a ÷ b", 0.912, "≥ 0.90", True, {"a": [1.0, 2.0], "b": [3.0, 4.0]})


def result(row: Row = ROW, load: float = 0.5) -> Result:
    return Result(row, load, 1.5, 0.02, 12.34, "2026-11-20T00:00:00+00:00")


def printed(results: list[Result], load_at_start: float = 0.5) -> str:
    console = Console(width=160)
    with console.capture() as capture:
        console.print(results_table(results, MACHINE, load_at_start))
    return capture.get()


def test_a_result_is_written_with_its_samples_and_the_machine(tmp_path: Path) -> None:
    values = json.loads(write_result(result(), MACHINE, tmp_path / "results").read_text())
    assert values["samples"] == {"a": [1.0, 2.0], "b": [3.0, 4.0]}
    assert values["load_average"] == {"before": 0.5, "after": 1.5}
    assert values["machine"]["cores"] == 2
    assert values["machine"]["packages"] == {"torch": "2.13.0"}
    assert values["date"] == "2026-11-20T00:00:00+00:00"


def test_a_file_is_named_after_the_row(tmp_path: Path) -> None:
    assert write_result(result(), MACHINE, tmp_path).name == "P1.json"


def test_a_value_that_was_not_measured_is_null_in_json(tmp_path: Path) -> None:
    file = write_result(result(failed_row("P1", "no Triton")), MACHINE, tmp_path)
    values = json.loads(file.read_text())
    assert values["value"] is None
    assert values["error"] == "no Triton"


def test_the_table_shows_name_value_goal_and_whether_it_holds() -> None:
    line = next(line for line in printed([result()]).splitlines() if "P1" in line)
    assert [cell.strip() for cell in line.split("│")[1:7]] == [
        "P1",
        "a ÷ b",
        "0.912",
        "≥ 0.90",
        "yes",
        "0.5 → 1.5",
    ]


def test_the_table_says_why_a_row_failed_row() -> None:
    shown = printed([result(failed_row("P1", "WorkError: no Triton [here]")), result()])
    assert "WorkError: no Triton [here]" in shown


def test_the_table_says_when_others_used_the_machine() -> None:
    assert "others used this machine" in " ".join(printed([result()], 2.5).split())
    assert "others used this machine" not in " ".join(printed([result()], 1.5).split())


@pytest.mark.parametrize(("load", "busy"), [(2.0, False), (2.1, True)])
def test_a_machine_is_busy_above_one_process_for_each_core(load: float, busy: bool) -> None:
    assert is_busy(load, MACHINE) is busy


def test_this_machine_has_cores_and_versions() -> None:
    machine = this_machine()
    assert machine.cores >= 1
    assert "torch" in machine.packages
