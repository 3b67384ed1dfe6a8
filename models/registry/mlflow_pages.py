"""Addresses of pages in MLflow's UI.

Since 3.17 its UI opens for work on language-model applications, without the registry, unless the
address says otherwise. It reads that from the query inside the fragment; the tag of an experiment
decides where its UI has no such choice. The list of the registry's models drops the query when it
has loaded, so it is right and the bar beside it is not; a model's page keeps it.
"""

TRAINING = "workflowType=machine_learning"
REGISTRY = "#/models"

KIND = "mlflow.experimentKind"
"""Tag of an experiment: what kind of work it holds."""
KIND_OF_OURS = "custom_model_development"


def page(address: str, path: str) -> str:
    """Return the address of a page.

    Args:
        address: of the MLflow server.
        path: of the page, beginning with `#/`.
    """
    return f"{address.rstrip('/')}/{path}{'&' if '?' in path else '?'}{TRAINING}"


def version_page(address: str, model: str, version: int) -> str:
    """Return the address of the page of a model version, where its aliases are set."""
    return page(address, f"#/models/{model}/versions/{version}")
