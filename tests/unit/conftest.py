"""What unit tests of several folders share."""

import pytest

from millrace.models.common.installation import Installation


@pytest.fixture(scope="session")
def mlflow_places(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """An embedded MLflow of its own; its database takes seconds to make, so all tests share it."""
    home = tmp_path_factory.mktemp("mlflow")
    return Installation(home, f"sqlite:///{home}/mlflow.db", str(home / "tables")).prepared()
