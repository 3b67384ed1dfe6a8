from millrace.models.registry.mlflow_pages import REGISTRY, page, version_page


def test_a_page_says_what_the_ui_is_used_for_inside_its_fragment() -> None:
    assert page("http://m:5000/", REGISTRY) == (
        "http://m:5000/#/models?workflowType=machine_learning"
    )
    assert version_page("http://m", "a", 3).endswith(
        "/#/models/a/versions/3?workflowType=machine_learning"
    )
    assert page("http://m", "#/x?y=1").endswith("?y=1&workflowType=machine_learning")
