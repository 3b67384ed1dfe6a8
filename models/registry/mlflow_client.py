"""MLflow's client, which asks once for each name whether it is a prompt's.

MLflow keeps prompts and models in one registry. Before each change of a tag or an alias, its client
asks for the registered model, to refuse the name of a prompt: one more request, or 8 ms of a
database, for each tag.
"""

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlflow import MlflowClient


@cache
def client_type() -> "type[MlflowClient]":
    """Return the class of the client; MLflow takes seconds to import."""
    from mlflow import MlflowClient

    models: set[tuple[str, str]] = set()

    class Client(MlflowClient):
        """MLflow's client, which remembers the names that are those of models."""

        def _raise_if_prompt(self, name: str) -> None:
            known = (str(self._registry_uri), name)
            if known not in models:
                super()._raise_if_prompt(name)
                models.add(known)

    return Client
