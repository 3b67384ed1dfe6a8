import pytest

from bench.catalog import MODULES, choose_benchmarks


def test_no_names_choose_everything() -> None:
    assert choose_benchmarks(()) == MODULES


@pytest.mark.parametrize("name", ["serving", "Serving"])
def test_a_module_chooses_all_its_rows(name: str) -> None:
    assert choose_benchmarks([name]) == {"serving": ("P1", "P2", "P3")}


def test_a_row_chooses_itself_in_any_case() -> None:
    assert choose_benchmarks(["p10", "P2"]) == {"serving": ("P2",), "overhead": ("P10",)}


def test_an_unknown_name_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="p99"):
        choose_benchmarks(["P1", "P99"])
