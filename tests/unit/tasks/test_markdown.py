from millrace.tasks.reports.markdown import key_of, table


def test_a_table_has_its_head_and_a_rule_above_the_rows() -> None:
    assert table(("model", "version"), [("digits", "3"), ("iris", "1")]) == (
        "| model | version |\n| --- | --- |\n| digits | 3 |\n| iris | 1 |"
    )


def test_a_table_without_rows_has_its_head() -> None:
    assert table(("a",), []) == "| a |\n| --- |"


def test_a_bar_in_a_cell_does_not_end_it() -> None:
    assert table(("a",), [("x|y",)]).endswith("| x\\|y |")


def test_a_key_has_what_prefect_takes() -> None:
    assert key_of("churn_2", "mlflow-run") == "churn-2-mlflow-run"
    assert key_of("_x.y_", "training") == "x-y-training"
