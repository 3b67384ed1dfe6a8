import math

import pytest

from bench.catalog import MODULES, attempt, chosen
from bench.row import Row


def test_no_names_choose_everything() -> None:
    assert chosen(()) == MODULES


@pytest.mark.parametrize("name", ["serving", "Serving"])
def test_a_module_chooses_all_its_rows(name: str) -> None:
    assert chosen([name]) == {"serving": ("P1", "P2", "P3")}


def test_a_row_chooses_itself_in_any_case() -> None:
    assert chosen(["p10", "P2"]) == {"serving": ("P2",), "overhead": ("P10",)}


def test_an_unknown_name_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="p99"):
        chosen(["P1", "P99"])


def test_a_row_that_fails_says_why() -> None:
    def measure() -> Row:
        raise RuntimeError("no Triton")

    row = attempt("P1", measure)
    assert (row.name, row.holds, row.error) == ("P1", False, "RuntimeError: no Triton")
    assert math.isnan(row.value)
