import pytest

from millrace.models.registry.mlflow_pages import (
    REGISTRY,
    describe_promotion,
    for_mlflow,
    page,
    version_page,
)
from millrace.tasks.reports.markdown import table


def test_a_page_says_what_the_ui_is_used_for_inside_its_fragment() -> None:
    assert page("http://m:5000/", REGISTRY) == (
        "http://m:5000/#/models?workflowType=machine_learning"
    )
    assert version_page("http://m", "a", 3).endswith(
        "/#/models/a/versions/3?workflowType=machine_learning"
    )
    assert page("http://m", "#/x?y=1").endswith("?y=1&workflowType=machine_learning")


@pytest.mark.parametrize(
    ("newest", "address", "says"),
    [
        (None, "sqlite:///m.db", "`millrace run FILE`, then give the version the alias champion"),
        (3, "sqlite:///m.db", "`millrace up`, then give m version 3 the alias champion in the"),
        (3, "http://h:5000", "give m version 3 the alias champion on its page, http://h:5000/#/m"),
    ],
)
def test_the_way_to_a_champion_is_one_that_is_left(
    newest: int | None, address: str, says: str
) -> None:
    assert describe_promotion("m", newest, address).startswith(says)


def test_a_version_that_did_not_pass_is_not_proposed() -> None:
    says = describe_promotion("m", None, "sqlite:///m.db", 2)
    assert says.startswith(
        "no version of m has passed its gates (versions: 2); `millrace run FILE`"
    )


def test_columns_of_tables_have_space_between_them_however_often_they_are_written() -> None:
    written = "before | after\n\n" + table(("a", "b"), [("1 | 2", "x"), ("", "y")])
    shown = for_mlflow(written)
    assert shown.splitlines()[2:] == [
        "| a&emsp; | b |",
        "| --- | --- |",
        "| 1 \\| 2&emsp; | x |",
        "| &emsp; | y |",
    ]
    assert shown.startswith("before | after")
    assert for_mlflow(shown) == shown
