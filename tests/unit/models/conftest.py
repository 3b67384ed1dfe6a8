import pytest

from models.places import Places


@pytest.fixture(scope="session")
def mlflow_places(tmp_path_factory: pytest.TempPathFactory) -> Places:
    """An embedded MLflow of its own; its database takes seconds to make, so all tests share it."""
    home = tmp_path_factory.mktemp("mlflow")
    return Places(home, f"sqlite:///{home}/mlflow.db", str(home / "tables")).prepared()
